"""The tasks of a developer's first day work from the wheels. The code and the commands are those of the pages."""

import asyncio
import inspect
import json
import os
import re
import shutil
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dev.tests.system.up import answer_to, up
from surelane.testing import Bot, Slack, assert_replied
from surelane_dev.simulator.client import SimulatorClient
from tests.deploy.commands import ROOT
from tests.deploy.first_day import Day, code, command
from tests.deploy.packages import INDEXES, environment
from tests.docs.blocks import blocks
from tests.otlp import receiving
from tests.processes import until

pytestmark = [pytest.mark.packages, pytest.mark.timeout(1200)]
HANDLERS, OPERATING = "docs/handlers.md", "docs/operating.md"
IMPORTS = "import asyncio\nfrom surelane_worker import *\n\nhandlers = Handlers()\n"
GIVEN = "async def {0}(*given):\n    return ' '.join(map(str, given))\n\n\n"
"""A function of the reader's, which a page takes for granted."""


def durable_handlers() -> str:
    trip, approval = code("docs/durable.md", "def book_trip"), code("docs/durable.md", 'timeout="7d"')
    names = ("book_flight", "cancel_flight", "book_hotel", "cancel_hotel", "make_plan", "run")
    registered = 'handlers.on("trip")(book_trip)\nhandlers.on("slack.app_mention")(deploy)\n'
    schedule = code("docs/jobs.md", "handlers.cron(")
    return "\n\n".join([IMPORTS, *map(GIVEN.format, names), trip, approval, registered, schedule])


async def a_job_of_later_is_tried_again(bot: Bot, slack: Slack) -> None:
    sent = await slack.mention("hello")
    await bot.advance("2h")
    assert_replied(sent, "Started. I will report here in an hour.", "All is well.")


async def a_button_of_a_message_is_clicked(slack: Slack) -> None:
    asked = await slack.mention("deploy web")
    assert_replied(asked, "Deploy web?")
    assert_replied(await slack.click(asked, "approve"), "Noted.")


async def a_command_is_answered(slack: Slack) -> None:
    assert_replied(await slack.command("/deploy", "web"), "Deploying web …")
    assert_replied(await slack.command("/status"), "All systems go.")


async def a_modal_opens_and_is_submitted(slack: Slack) -> None:
    await slack.shortcut("ask")
    await slack.submit({"text": "Why?"})
    assert slack.messages()[-1].text == "You ask: Why?"


async def a_limited_job_runs(bot: Bot) -> None:
    for _ in range(3):
        await bot.queue.enqueue("summarise", {"team_id": "T0SURELANE"})
    await bot.idle()
    assert [event.state for event in bot.events] == ["completed"] * 3


async def a_signal_ends_a_wait(bot: Bot) -> None:
    await bot.queue.enqueue("trip", {"trip": 7}, item_key="trip:7")
    await bot.idle()
    assert bot.events[0].state == "suspended"
    await bot.queue.signal("trip:7", "paid", {"amount": 10})
    await bot.idle()
    assert bot.events[0].state == "completed"


async def an_approval_and_a_sleep_take_no_time(bot: Bot, slack: Slack) -> None:
    asked = await slack.mention("api")
    await slack.click(asked)
    await bot.advance("10m")
    assert slack.messages("general")[-1].text == "done, as <@U0ADA00001> approved"


async def a_schedule_fires(bot: Bot) -> None:
    await bot.advance("5m")
    assert "provider-refresh" in [event.kind for event in bot.events]


async def a_bolt_app_runs_as_it_is(slack: Slack) -> None:
    assert_replied(await slack.command("/deploy", "web"), "Deploying web…", "Deployed web.")
    await slack.click(await slack.mention("hello"), "approve")
    assert slack.messages("general")[-1].text == "Approved by <@U0ADA00001>"


WRITTEN: dict[str, tuple[Callable[[], str], list[Callable[..., Any]]]] = {
    "readme": (lambda: code("README.md"), [a_job_of_later_is_tried_again]),
    "routes": (
        lambda: GIVEN.format("ask_model") + code(HANDLERS),
        [
            *(a_button_of_a_message_is_clicked, a_command_is_answered),
            *(a_modal_opens_and_is_submitted, a_limited_job_runs),
        ],
    ),
    "durable": (
        durable_handlers,
        [a_signal_ends_a_wait, an_approval_and_a_sleep_take_no_time, a_schedule_fires],
    ),
}
TASKS = [f"test_{task.__name__}" for _, tasks in WRITTEN.values() for task in tasks]


def as_tests(tasks: list[Callable[..., Any]], fixture: str = "") -> str:
    told = "\n\n".join(re.sub(r"^async def ", "async def test_", inspect.getsource(task)) for task in tasks)
    return f"import pytest\n\nfrom surelane.testing import Bot, Slack, assert_replied\n\n{fixture}\n\n{told}"


@pytest.fixture(scope="module")
def day(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Day:
    """Install, write a project, and run its tests beside those of the pages, as the pages say."""
    home = tmp_path_factory.mktemp("day")
    programs, _ = environment(home)
    path = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "COLUMNS": "200",
    }
    day = Day(home, {**INDEXES, **path, "PIP_FIND_LINKS": str(wheels["surelane"].parent)})
    for start in ("pip install", "surelane new mybot"):
        day.does("docs/own-project.md", start, where=".")
    day.does("docs/own-project.md", "pip install --find-links DIRECTORY --editable")
    for name, (written, tasks) in WRITTEN.items():
        (day.project / f"{name}.py").write_text(written())
        fixture = f"@pytest.fixture\ndef handlers():\n    import {name}\n    return {name}.handlers"
        (day.project / f"tests/test_{name}.py").write_text(as_tests(tasks, fixture))
    day.tests("mybot")
    return day


@pytest.mark.parametrize(
    "task", ["test_answers_a_mention", "test_answers_once_although_the_worker_was_killed", *TASKS]
)
def test_a_task_in_the_projects_tests(day: Day, task: str) -> None:
    assert not day.failed[task]


def test_a_bolt_app_moves(day: Day) -> None:
    """The app of the examples, with the extension installed now, and an `Assistant` that is given no context."""
    (app := day.home / "move").mkdir()
    shutil.copy(ROOT / "examples/bolt/app.py", app)
    day.does("docs/bolt.md", "pip install", "move")
    settings = next(block.code for block in blocks("toml", page="docs/testing.md") if "pytest" in block.code)
    (app / "pyproject.toml").write_text(settings.replace("mybot.handlers:handlers", "app:app"))
    (thread,) = [block.code for block in blocks("python", page="docs/testing.md") if block.role == "bolt"]
    assistant = f"\n\nasync def test_assistant(slack: Slack) -> None:\n{textwrap.indent(thread, '    ')}"
    assistant += '    assert_replied(sent, "You said: hello")\n'
    (app / "test_app.py").write_text(as_tests([a_bolt_app_runs_as_it_is]) + assistant)
    day.tests("move")
    for task in ("test_assistant", "test_a_bolt_app_runs_as_it_is"):
        assert not day.failed[task]


@pytest.fixture(scope="module")
async def running(day: Day) -> AsyncIterator[Day]:
    """Run the project by `surelane dev`, with a setting's name mistyped. A mention is answered, and a job fails."""
    more = re.sub(r"handlers = Handlers\(\)|.*app_mention.*", "", durable_handlers())
    (day.project / "mybot/handlers.py").write_text(f"{WRITTEN['routes'][0]()}\n\n{more}")
    data, python = day.project / ".surelane/postgres", Path(day.env["PATH"].partition(":")[0], "python")
    async with (
        receiving() as spans,
        up(data, {**spans.env, "SURELANE_CONCURENCY": "3"}, project=day.project, python=python) as system,
    ):
        await system.ready()
        await system.shows(r"there is no such setting .*nearest=SURELANE_CONCURRENCY")
        await system.shows(r"add below slash_commands: - command: /deploy")
        day.env["SURELANE_SIMULATOR_URL"] = system.page
        async with SimulatorClient(system.page) as slack:
            said = await slack.say("hello", mention=True)
            assert await answer_to(slack, said["message"]) == "hello"
        day.given = {"Ev0123456789": said["events"][0]["id"], "…": f"'{system.database}'"}
        day.given["http://127.0.0.1:8081"] = system.found(r"operator's API +(http\S+)/v1/jobs")
        await asyncio.to_thread(day.runs, """surelane enqueue order-placed --payload '{"number": "x"}'""")
        await asyncio.to_thread(day.runs, "surelane enqueue trip --key trip:8 --payload '{\"trip\": 8}'")
        yield day
        trace = (await asyncio.to_thread(day.does, "docs/observability.md", "surelane trace")).split()[0]
        names = {"send slack.app_mention", "process slack.app_mention"}
        await until(lambda: names <= {span.name for span in spans.trace(trace)}, within=60, what="its trace")


MIGRATE = {"docker compose run --rm migrate": "DATABASE_URL=… python -m surelane_migrations"}
COMMANDS = [
    (OPERATING, "surelane doctor", {}, "ok +logins: .*nothing is wrong"),
    ("docs/simulator.md", 'python -m surelane_dev.simulator send "/deploy', {}, ""),
    (OPERATING, "surelane events search /deploy production", {" production": ""}, "completed"),
    (OPERATING, "surelane events why Ev", {}, "ended as completed"),
    (OPERATING, "surelane events show", {}, '"text": ".* hello"'),
    ("docs/own-project.md", "surelane events history", {}, "replied +message"),
    ("docs/durable.md", "surelane events signal KEY", {"KEY": "trip:8"}, "sent"),
    (OPERATING, "surelane logs Ev0123456789", {"Ev0123456789": "trip:8"}, "signalled(.|\n)*completed"),
    (OPERATING, "surelane events list --status failed", {}, "invalid_payload"),
    (OPERATING, "surelane events rerun --status failed", {}, "1 run again"),
    (OPERATING, "surelane limits list", {}, "summarise +workspace +2 +60/1m"),
    (OPERATING, "surelane limits set", {}, "is changed"),
    (OPERATING, "surelane limits reset", {}, "as its workers declare"),
    ("docs/jobs.md", "… set NAME KIND '*/5", {"… set": "surelane cron set", "KIND": "trip"}, "fires next at"),
    ("docs/jobs.md", "surelane cron list", {}, r"refresh-prices .*\*/5"),
    (OPERATING, "surelane erase --user", {"U012AB3CD": "U0ADA00001"}, "would remove"),
    ("docs/deploy-compose.md", "curl -H", {"$token": "surelane-demo-api-token"}, '"jobs":'),
    ("docs/deploy-compose.md", "docker compose run --rm migrate status", MIGRATE, "applied +000"),
]
"""Commands of the pages, with what stands for the reader's words in them, and what they print."""


@pytest.mark.parametrize(
    ("page", "start", "given", "printed"), COMMANDS, ids=[start for _, start, *_ in COMMANDS]
)
async def test_a_command_of_the_pages(
    running: Day, page: str, start: str, given: dict[str, str], printed: str
) -> None:
    said = await asyncio.to_thread(running.runs, command(page, start), **given)
    assert re.search(printed, said), said


async def test_keys_are_made_and_rotated(running: Day) -> None:
    keys = [await asyncio.to_thread(running.does, "docs/encryption.md", "surelane keys new") for _ in "12"]
    rotate = command("docs/encryption.md", "DATABASE_URL=… SURELANE_ENCRYPTION_KEYS=")
    said = await asyncio.to_thread(running.runs, rotate, OLD=keys[0].strip(), NEW=keys[1].strip())
    assert "none is left" in said


async def test_a_web_application_stores_a_job_once_in_its_transaction(running: Day) -> None:
    block = textwrap.indent(code("docs/jobs.md", "connection.transaction"), "    ")
    connect = f"    connection = await asyncpg.connect({running.given['…']})\n"
    table = "    await connection.execute('create table if not exists orders (number int8)')\n"
    program = (
        f"import asyncio\nimport asyncpg\nasync def main():\n{connect}{table}{block}\nasyncio.run(main())"
    )
    (running.home / "web.py").write_text(program)
    for _ in range(2):
        await asyncio.to_thread(running.runs, "python web.py", where=".")
    said = await asyncio.to_thread(running.runs, "surelane events list --kind agent-turn --json")
    assert [job["dedupe_key"] for job in json.loads(said)] == ["slack:C1:17.1"]


def test_compose_reads_the_files_and_the_env_as_generated(day: Day) -> None:
    if shutil.which("docker") is None:
        pytest.skip("docker is not there")
    day.does("docs/own-project.md", "cp .env.example .env")
    services = day.runs("docker compose config --services").split()
    assert sorted(services) == ["db", "ingest", "migrate", "operator", "settings", "worker"]
