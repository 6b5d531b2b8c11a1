# ruff: noqa: ARG001 - a handler takes both arguments, used or not
"""Handle the worker tests' events in real worker processes."""

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from opentelemetry import trace

from surelane_worker import (
    Context,
    Continuation,
    Event,
    FanOut,
    Handlers,
    Job,
)
from surelane_worker.handling.context import attempt_of

handlers = Handlers()


@handlers.on("echo")
async def echo(event: Event, ctx: Context) -> object:
    """Return the payload."""
    ctx.log.debug("echoing")
    return event.payload


@handlers.on("nothing")
async def nothing(event: Event, ctx: Context) -> None:
    """Do nothing."""


@handlers.on("raise")
async def raise_always(event: Event, ctx: Context) -> None:
    """Fail every time."""
    raise RuntimeError(event.payload.get("message", "always"))


@handlers.on("leak")
async def leak(event: Event, ctx: Context) -> None:
    """Put the payload's text into every exception that a handler can cause, and nowhere else."""
    secret = event.payload["secret"]
    asyncio.get_running_loop().create_task(_raise(secret))
    with suppress(Exception):
        await ctx.queue.answer_event(event.id, secret)  # is not JSON
    try:
        await _raise(secret)
    except RuntimeError:
        ctx.log.exception("it was caught")
    with trace.get_tracer("handler").start_as_current_span("a span of its own"):
        await _raise(secret)


@handlers.on("own-span")
async def own_span(event: Event, ctx: Context) -> None:
    """Make a span, as a library would."""
    with trace.get_tracer("handler").start_as_current_span("a span of its own"):
        await asyncio.sleep(0)


async def _raise(secret: str) -> None:
    raise RuntimeError(secret)


@handlers.on("raise-once")
async def raise_once(event: Event, ctx: Context) -> str:
    """Fail the first time."""
    if ctx.attempt == 1:
        raise RuntimeError("the first time")
    return "the second time"


@handlers.on("sleep")
async def sleep(event: Event, ctx: Context) -> None:
    """Sleep for the payload's seconds."""
    await asyncio.sleep(event.payload.get("seconds", 60))


@handlers.on("wait-for-file")
async def wait_for_file(event: Event, ctx: Context) -> None:
    """End when the payload's path exists. A file beside it says that the event's handler runs."""
    Path(f"{event.payload['path']}.{event.id}").touch()  # noqa: ASYNC240
    while not Path(event.payload["path"]).exists():  # noqa: ASYNC110, ASYNC240 - the test makes it
        await asyncio.sleep(0.02)


@handlers.on("sleep-in-a-thread")
def sleep_in_a_thread(event: Event, ctx: Context) -> dict[str, object]:
    """Block a thread for the payload's seconds; return the times."""
    began = time.time()
    time.sleep(event.payload.get("seconds", 0.1))
    replied = ctx.run(asyncio.sleep(0, result=True))
    return {"replied_from_a_thread": replied, "began": began, "ended": time.time()}


class Overdue:
    """Blocks its thread past the timeout, until ``ctx.cancelled`` says that it is over."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.now = self.most = 0

    def __call__(self, ctx: Context) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        until = time.monotonic() + 20
        while not ctx.cancelled and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.5)  # runs on after it was told, as a thread can
        ctx.log.info("%s thread ends", self.kind, most=self.most, told=ctx.cancelled)
        self.now -= 1


overdue, overdue_step = Overdue("overdue"), Overdue("overdue-step")


@handlers.on("overdue", timeout="200ms", concurrency=1)
def is_overdue(event: Event, ctx: Context) -> None:
    overdue(ctx)


@handlers.on("overdue-step")
async def has_overdue_step(event: Event, ctx: Context) -> None:
    await ctx.step("block", lambda: overdue_step(ctx), timeout="200ms", retries=1)


@handlers.on("block-the-loop")
async def block_the_loop(event: Event, ctx: Context) -> None:
    """Block the worker's event loop until its log says so."""
    deadline = time.monotonic() + 60
    while attempt_of(ctx).work.blocked is None and time.monotonic() < deadline:  # type: ignore[attr-defined]
        time.sleep(0.05)  # noqa: ASYNC251 - it blocks on purpose


@handlers.on("one-at-a-time", concurrency=1)
async def one_at_a_time(event: Event, ctx: Context) -> None:
    await asyncio.sleep(0.05)


@handlers.on_group("together")
async def together(events: list[Event], ctx: Context) -> list[int]:
    """Return the numbers of the events that it got together."""
    return [event.payload["n"] for event in events]


@handlers.on("step", "ordered")
async def step(event: Event, ctx: Context) -> None:
    await asyncio.sleep(0.005)


@handlers.on("slack.app_mention")
async def mentioned(event: Event, ctx: Context) -> object:
    """Answer as the message asks. The worker of a stream dies, as by ``kill -9``, if it says so."""
    words = event.slack["text"].split()
    if "fail-first" in words and ctx.attempt == 1:
        raise RuntimeError(event.slack["text"])
    if "stream" not in words:
        return await ctx.slack.reply(event, "first answer")
    async with ctx.slack.stream(event, interval=0) as stream:
        await stream.append("one ")
        await stream.append("two ")
        if "die-in-the-middle" in words:
            os.kill(os.getpid(), signal.SIGKILL)
        await stream.append("three")
    return stream.ts


@handlers.on_group("slack.message.im")
async def conversation(events: list[Event], ctx: Context) -> list[str]:
    """Return the messages that it got together."""
    return [event.slack["text"] for event in events]


@handlers.on("short")
async def short(event: Event, ctx: Context) -> None:
    """Take a few milliseconds."""
    await asyncio.sleep(0.003)


@handlers.on("plan")
async def plan(event: Event, ctx: Context) -> FanOut:
    """Split into subtasks and their synthesis."""
    children = [Job("subtask", {"n": n}) for n in range(event.payload["parts"])]
    return FanOut(children, Continuation("synthesize"), result="planned")


@handlers.on("subtask")
async def subtask(event: Event, ctx: Context) -> int:
    """Return the square."""
    return int(event.payload["n"]) ** 2


@handlers.on("synthesize")
async def synthesize(event: Event, ctx: Context) -> int:
    """Return the sum of the subtasks' results."""
    return sum(child.result for child in await ctx.queue.children(event.id))
