"""Handle the events of the promises' tests in real worker processes. Each notes in a file what it does."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from surelane_agents import Agent, Tools
from surelane_worker import Context, Event, Handlers, Limit

handlers = Handlers()
tools = Tools()
TOGETHER = 2
"""How many events of the kind ``limited`` may run at once."""


def _note(event: Event, text: str) -> str:
    log = Path(event.payload["log"])
    with log.open("a") as file:
        file.write(f"{text}\n")
    return text


def _noted(event: Event, text: str) -> bool:
    log = Path(event.payload["log"])
    return log.exists() and text in log.read_text().split("\n")


def _die_once(event: Event, where: str) -> None:
    """Kill this process as by ``kill -9``, the first time that a handler of the event gets here."""
    if not _noted(event, f"died {where}"):
        _note(event, f"died {where}")
        os.kill(os.getpid(), signal.SIGKILL)


async def _gate(event: Event) -> None:
    """Wait until the test makes a file beside the log."""
    while not Path(event.payload["log"]).with_suffix(".go").exists():  # noqa: ASYNC110 - the test makes it
        await asyncio.sleep(0.01)


@handlers.on("nothing")
async def nothing(_: Event, __: Context) -> None:
    """Do nothing."""


@handlers.on("numbered")
async def numbered(event: Event, ctx: Context) -> None:
    """Note when it begins and ends. Fail once if the payload says so."""
    _note(event, f"begin {event.payload['n']}")
    await asyncio.sleep(0.01)
    _note(event, f"end {event.payload['n']}")
    if event.payload.get("fail") and ctx.attempt == 1:
        raise RuntimeError("not yet")


@handlers.on("limited", limit=Limit(concurrency=TOGETHER))
async def limited(event: Event, _: Context) -> None:
    """Note when it begins and ends."""
    _note(event, "begin")
    await asyncio.sleep(0.02)
    _note(event, "end")


@handlers.on("hold")
async def hold(event: Event, ctx: Context) -> int:
    """Run until the test opens the gate; return the attempt."""
    _note(event, f"begin {ctx.attempt}")
    try:
        await _gate(event)
    except asyncio.CancelledError:
        _note(event, "cancelled")
        raise
    return ctx.attempt


@handlers.on("hang-once")
async def hang_once(_: Event, ctx: Context) -> None:
    """Hang at the first attempt."""
    if ctx.attempt == 1:
        await asyncio.Event().wait()


@handlers.on("steps")
async def steps(event: Event, ctx: Context) -> list[str]:
    """Die in a step, after it, and after a wait. Each step notes that it ran."""

    def first() -> str:
        _die_once(event, "in first")
        return _note(event, "first")

    done = [await ctx.step("first", first)]
    _die_once(event, "after first")
    await ctx.sleep("10ms")
    _die_once(event, "after the wait")
    return [*done, await ctx.step("second", _note, event, "second")]


@handlers.on("talk", debounce="30m")
async def talk(events: list[Event], ctx: Context) -> list[str]:
    """Fail once; return what all events of the run say."""
    _note(events[0], " ".join(event.payload["text"] for event in events))
    if ctx.attempt == 1:
        raise RuntimeError("not yet")
    return [event.payload["text"] for event in events]


@handlers.on("slack.app_mention")
async def mentioned(event: Event, ctx: Context) -> None:
    """Reply twice. Kill the worker after the first reply, or wait for the gate, if the text says so."""
    text = event.slack["text"]
    await ctx.slack.reply(event, "first")
    if "die" in text and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if "slowly" in text and ctx.attempt == 1:
        await asyncio.sleep(3600)
    await ctx.slack.reply(event, "second")


@handlers.command("/deploy", answers=True)
async def deploy(event: Event, ctx: Context) -> list[bool]:
    """Answer twice. The second answer is not taken."""
    return [await ctx.ack(text=f"deploying {event.payload['text']}"), await ctx.ack(text="again")]


@handlers.command("/die", answers=True)
async def die(_: Event, ctx: Context) -> bool:
    """Kill the worker at the first attempt."""
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return await ctx.ack(text="too late")


@handlers.on("secret")
async def secret(event: Event, _: Context) -> Any:
    """Return a secret."""
    return {"secret": event.payload["text"]}


@handlers.on("approved")
async def approved(event: Event, ctx: Context) -> Any:
    """Wait for a person between two steps."""
    first = await ctx.step("first", _note, event, "first")
    answer = await ctx.wait_for("answer")
    return [first, answer, await ctx.step("second", _note, event, "second")]


@tools.add
def note(log: str, text: str) -> str:
    """Note that the model called. Die in the call that says so, the first time."""
    path = Path(log)
    died = path.exists() and "die" in path.read_text().split()
    with path.open("a") as file:
        file.write(f"{text}\n")
    if text == "die" and not died:
        os.kill(os.getpid(), signal.SIGKILL)
    return "noted"


handlers.on("agent-turn", timeout="1m")(Agent().turn)  # with the tools of the settings
