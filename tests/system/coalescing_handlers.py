"""Handle the events of the coalescing tests in real worker processes."""

import asyncio
from pathlib import Path
from typing import Any

from surelane_worker import Context, Discard, Event, FanOut, Handlers, Job, Limit
from surelane_worker import Continuation as Then
from tests.system.durable_handlers import Log

handlers = Handlers()


def words(events: list[Event]) -> list[str]:
    """Return what the events say."""
    return [event.payload["text"] for event in events]


async def until_told(event: Event) -> None:
    """Note that the run began, and go on when the test makes a file."""
    Log(event).add("began")
    while not Path(event.payload["log"]).with_suffix(".go").exists():  # noqa: ASYNC110 - the test makes it
        await asyncio.sleep(0.01)


@handlers.on("talk", debounce="30m")
async def talk(events: list[Event], ctx: Context) -> Any:
    """Do what the first event says with all of them."""
    first = events[0]
    said: list[str] = await ctx.step("read", lambda texts: texts, words(events))
    match first.payload.get("do"):
        case "fail once" if ctx.attempt == 1:
            await until_told(first)
            raise RuntimeError("not yet")
        case "fail":
            return Discard("no more")
        case "sleep":
            await ctx.sleep("20ms")
            assert said == await ctx.step("read again", lambda texts: texts, words(events))
        case "hang":
            Log(first).add("began")
            try:
                await asyncio.sleep(60 if ctx.attempt == 1 else 0)
            finally:
                Log(first).add("ended")
        case "wait":
            await until_told(first)
        case "die":
            Log(first).add(" ".join(words(events)))
            Log(first).die_once("in run")
        case "fan out":
            return FanOut([Job("plain", {"text": "child"})], Then("plain", {"text": "then"}))
    return said


@handlers.on("quick", debounce="100ms", max_wait="10s")
def quick(events: list[Event], _: Context) -> Any:
    """Return what the events say, from a thread."""
    return words(events)


@handlers.on("limited", debounce="30m", limit=Limit(concurrency=1))
async def limited(events: list[Event], _: Context) -> Any:
    """Return what the events say."""
    return words(events)


@handlers.on("plain")
async def plain(event: Event, _: Context) -> Any:
    """Handle one event."""
    if event.payload.get("log"):
        Log(event).add("plain")
    return event.payload["text"]


@handlers.on("slack.app_mention", debounce="30m")
async def mentioned(events: list[Event], ctx: Context) -> None:
    """Answer the last message, and once more after a pause."""
    said = [event.slack["text"].split("> ")[1] for event in events]
    await ctx.slack.reply(events[-1], " + ".join(said))
    await ctx.sleep("10ms")
    await ctx.slack.reply(events[-1], "and once more")
