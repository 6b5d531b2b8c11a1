"""`surelane dev` in a team's project: it reloads on save, loses nothing, and keeps its services running."""

import asyncio
import re
import sys
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from dev.tests.system.up import LONG, Up, answer_to, say, status, up
from surelane_dev.new import write_project
from surelane_dev.simulator.client import SimulatorClient
from tests.deploy.commands import run

BROKEN = "raise SystemExit('no key for the shop')\n"
SLOW = """

@handlers.on("slack.app_mention")
async def answer(event: Event, ctx: Context) -> None:
    if "slow" in event.slack["text"]:
        ctx.log.info("slow begins")
        while not Path("go").exists():
            await asyncio.sleep(0.05)
    if "block" in event.slack["text"]:
        time.sleep(3600)
    if "fail" in event.slack["text"] and ctx.attempt == 1:
        raise ValueError("no such figure")
    await ctx.slack.reply(event, greeting(str(event.slack["text"])))


@handlers.event("reaction_added")
async def react(event: Event, ctx: Context) -> None:
    ctx.log.info("somebody reacted")
"""
LACKING = "the app's manifest does not subscribe to reaction_added"
SETTINGS = {
    "SURELANE_BACKOFF_BASE": "0.1s",
    "SURELANE_HANDLRES": "other:handlers",
    "DATABASE_URL": "postgresql://production/surelane",
}


def save(handlers: Path, old: str, new: str) -> None:
    text = handlers.read_text()
    assert old in text
    handlers.write_text(text.replace(old, new))


def project_in(directory: Path) -> Path:
    """Write a project whose handlers cannot be imported yet; return their file."""
    write_project(directory)
    handlers = directory / "mybot/handlers.py"
    text = handlers.read_text()
    begin, end = text.index("\n\n@handlers.on("), text.index('\n\n@handlers.on("reminder")')
    imports = text[:begin].replace(
        "from datetime", "import asyncio\nimport time\nfrom pathlib import Path\nfrom datetime", 1
    )
    handlers.write_text(BROKEN + imports + SLOW + text[end:])
    return handlers


@pytest.mark.packages  # as slow as those: it starts many processes
@pytest.mark.timeout(1800)
async def test_in_a_team_s_project(tmp_path: Path) -> None:
    project = tmp_path / "mybot"
    handlers = project_in(project)
    async with up(project / ".surelane/postgres", SETTINGS, project=project) as system:
        await assert_it_is_up_once_sound_code_runs(system, handlers)
        await assert_the_commands_find_it(project)
        worker = system.found(r"worker (http://\S+)/$")
        async with SimulatorClient(system.page) as slack:
            assert await answer_to(slack, "hello") == "You said: hello"
            assert await status(f"{worker}/readyz") == 200
            await assert_reloads_and_loses_nothing(system, slack, handlers)
            await assert_starts_a_dead_worker_again(system, slack)
            assert await answer_to(slack, "please fail") == "You wrote: please fail"
            await assert_the_manifest_is_the_one_place_of_event_types(system, project / "manifest.yaml")
            assert await status(f"{worker}/readyz") == 200
        assert len(set(re.findall(r"^  private ports .*$", system.shown, re.MULTILINE))) == 1
        assert "ValueError: no such figure" in system.shown
        assert re.search(r'File ".*/mybot/mybot/handlers.py", line \d+, in answer', system.shown)
        assert "\x1b" not in system.shown
        assert await system.end() == 0


async def assert_it_is_up_once_sound_code_runs(system: Up, handlers: Path) -> None:
    await system.shows("^No message is answered: the worker did not start: .*no key for the shop")
    assert "Surelane is up" not in system.shown
    await system.shows("there is no such setting .*nearest=SURELANE_HANDLERS")
    async with SimulatorClient(system.page) as slack:
        assert "no key for the shop" in (await slack.request("GET", "/control/state"))["problem"]
        early = await say(slack, "early")
        save(handlers, BROKEN, "import no_such_module\n")
        await system.shows("^No message is answered: .*No module named 'no_such_module'")
        save(handlers, "import no_such_module\n", "")
        await system.ready()
        assert await answer_to(slack, early) == "You said: early"
        assert (await slack.request("GET", "/control/state"))["problem"] == ""
    assert system.shown.count(LACKING) == 1
    assert "not used, because it may be a deployment's: DATABASE_URL" in system.shown


async def assert_the_commands_find_it(project: Path) -> None:
    command = (sys.executable, "-m", "surelane_operator.cli")
    listed = await asyncio.to_thread(run, *command, "events", "list", where=project, within=LONG)
    assert "slack.app_mention" in listed.stdout
    told = await asyncio.to_thread(run, *command, "doctor", where=project / "tests", check=False, within=LONG)
    assert LACKING in told.stdout


async def assert_the_manifest_is_the_one_place_of_event_types(system: Up, manifest: Path) -> None:
    async with SimulatorClient(system.page) as slack:
        sent = await say(slack, "look at this")
        save(manifest, "bot_events:", "bot_events: [")
        await system.shows(r"worker did not start: SURELANE_MANIFEST: \S+/manifest.yaml:\d+: .*stays in use")
        save(manifest, "bot_events: [", "bot_events:\n      - reaction_added")
        await system.shows(r"worker reloaded in .* manifest.yaml")
        # The conversations are kept, and the event goes all the way.
        on = {"channel": sent["channel"], "ts": sent["ts"], "name": "eyes"}
        await slack.request("POST", "/control/reactions", on)
    await system.shows("somebody reacted")


async def assert_reloads_and_loses_nothing(system: Up, slack: SimulatorClient, handlers: Path) -> None:
    reloaded, kept = "worker reloaded", "the earlier code stays in use"
    slow = await say(slack, "slow")
    await system.shows("slow begins")
    save(handlers, "You said", "You wrote")
    await system.shows(reloaded, times=2)  # the first was of the sound code
    assert await answer_to(slack, "hello") == "You wrote: hello"
    (handlers.parent.parent / "go").touch()
    assert await answer_to(slack, slow) == "You said: slow", "the old worker drained"

    save(handlers, "def greeting(", "def greeting((")
    await system.shows(kept)
    assert re.search(r'File ".*handlers.py", line \d+\n.*def greeting\(\(', system.shown)
    assert await answer_to(slack, "still there?") == "You wrote: still there?"
    save(handlers, "def greeting((", "def greeting(")
    await system.shows(reloaded, times=3)
    save(handlers, "Handlers()", "Handler()")
    await system.shows(kept, times=2)
    assert re.search(rf"worker did not start: .*'Handler'.*; {kept}", system.shown)
    for test in ("tests/test_handlers.py", "tests/helpers.py", "mybot/test_handlers.py", "mybot/conftest.py"):
        (handlers.parent.parent / test).write_text("")  # nothing is reloaded for a test
    save(handlers, "Handler()", "Handlers()")
    await system.shows(reloaded, times=4)
    files = set(re.findall(r"worker reloaded in .* s: (.*)$", system.shown, re.MULTILINE))
    assert files == {"mybot/handlers.py"}
    await assert_a_handler_that_blocks_everything_is_replaced(system, slack, handlers)


async def assert_a_handler_that_blocks_everything_is_replaced(
    system: Up, slack: SimulatorClient, handlers: Path
) -> None:
    blocked = await say(slack, "block")
    await system.shows(r"the event loop is blocked|blocks the event loop")
    save(handlers, "time.sleep(3600)", "pass")
    await system.shows("the earlier code does not answer within 3 s: it is killed")
    await system.shows("worker reloaded", times=5)
    assert await answer_to(slack, blocked) == "You wrote: block"


async def assert_starts_a_dead_worker_again(system: Up, slack: SimulatorClient) -> None:
    for pid in re.findall(r"working .*worker=\S+?:(\d+):", system.shown):  # a spare is not one of them
        with suppress(psutil.NoSuchProcess):
            psutil.Process(int(pid)).kill()
    await system.shows("worker ended with code -9; it starts again")
    assert await answer_to(slack, "are you back?") == "You wrote: are you back?"
