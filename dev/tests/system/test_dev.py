"""`surelane dev` in a team's project: it reloads on save, loses nothing, and keeps its services running."""

import asyncio
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from dev.tests.system.up import Up, up
from surelane_dev.new import write_project
from surelane_dev.simulator.client import SimulatorClient
from tests.deploy.commands import run
from tests.processes import until

SLOW = """

@handlers.on("slack.app_mention")
async def answer(event: Event, ctx: Context) -> None:
    if "slow" in event.slack["text"]:
        ctx.log.info("slow begins")
        while not Path("go").exists():
            await asyncio.sleep(0.05)
    if "fail" in event.slack["text"] and ctx.attempt == 1:
        raise ValueError("no such figure")
    await ctx.slack.reply(event, greeting(str(event.slack["text"])))
"""


def save(handlers: Path, old: str, new: str) -> None:
    text = handlers.read_text()
    assert old in text
    handlers.write_text(text.replace(old, new))


def project_in(directory: Path) -> Path:
    write_project(directory)
    handlers = directory / "mybot/handlers.py"
    text = handlers.read_text()
    begin, end = text.index("\n\n@handlers.on("), text.index('\n\n@handlers.on("reminder")')
    imports = text[:begin].replace(
        "from datetime", "import asyncio\nfrom pathlib import Path\nfrom datetime", 1
    )
    handlers.write_text(imports + SLOW + text[end:])
    return handlers


def workers(system: Up) -> set[int]:
    """Return the pids of the running workers; a spare is not one of them."""
    return {int(pid) for pid in re.findall(r"working .*worker=\S+?:(\d+):", system.shown)}


@pytest.mark.packages  # as slow as those: it starts many processes
async def test_in_a_team_s_project(tmp_path: Path) -> None:
    project = tmp_path / "mybot"
    handlers, data = project_in(project), project / ".surelane/postgres"
    settings = {"SURELANE_BACKOFF_BASE": "0.1s", "DATABASE_URL": "postgresql://production/surelane"}
    async with up(data, settings, project=project) as system:
        await system.ready()
        assert "not used, because it may be a deployment's: DATABASE_URL" in system.shown
        command = (sys.executable, "-m", "surelane_operator.cli", "events", "list")
        assert (await asyncio.to_thread(run, *command, where=project)).stdout == "no such events\n"
        async with SimulatorClient(system.page) as slack:
            first = await said(slack, "hello")
            assert await answer_to(slack, first) == "You said: hello"
            await assert_reloads_and_loses_nothing(system, slack, handlers)
            await assert_starts_a_dead_worker_again(system, slack)
            assert await answer_to(slack, await said(slack, "please fail")) == "You wrote: please fail"
        assert "ValueError: no such figure" in system.shown
        assert re.search(r'File ".*/mybot/mybot/handlers.py", line \d+, in answer', system.shown)
        assert "\x1b" not in system.shown
        assert await system.end() == 0
    async with up(data, settings, project=project) as again:
        await again.ready()
        async with SimulatorClient(again.page) as slack:
            assert await answer_to(slack, first) == "You said: hello", "the conversation is still there"


async def assert_reloads_and_loses_nothing(system: Up, slack: SimulatorClient, handlers: Path) -> None:
    slow = await said(slack, "slow")
    await until(lambda: "slow begins" in system.shown, what="a running handler")
    save(handlers, "You said", "You wrote")
    await until(lambda: "worker reloaded" in system.shown, within=90, what="the reload")
    assert await answer_to(slack, await said(slack, "hello")) == "You wrote: hello"
    (handlers.parent.parent / "go").touch()
    assert await answer_to(slack, slow) == "You said: slow", "the old worker drained"

    save(handlers, "def greeting(", "def greeting((")
    await until(lambda: "the earlier code stays in use" in system.shown, within=90, what="the error")
    assert re.search(r'File ".*handlers.py", line \d+\n.*def greeting\(\(', system.shown)
    assert await answer_to(slack, await said(slack, "still there?")) == "You wrote: still there?"
    save(handlers, "def greeting((", "def greeting(")
    await until(
        lambda: system.shown.count("worker reloaded") == 2, within=90, what="the reload of sound code"
    )


async def assert_starts_a_dead_worker_again(system: Up, slack: SimulatorClient) -> None:
    simulator = system.member("surelane_dev.program simulator")
    for pid in workers(system):
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
    await until(lambda: "worker ended with code -9; it starts again" in system.shown, what="the restart")
    assert await answer_to(slack, await said(slack, "are you back?")) == "You wrote: are you back?"
    assert simulator.is_running()


async def said(slack: SimulatorClient, text: str) -> dict[str, Any]:
    message: dict[str, Any] = (await slack.say(text, channel="general", mention=True))["message"]
    return message


async def answer_to(slack: SimulatorClient, message: dict[str, Any]) -> str:
    return str((await slack.reply(message, 90))["text"])
