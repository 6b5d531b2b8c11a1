"""Handle the events of the tests of failures, several waits at once and attempts in real worker processes."""

import asyncio
import os
import signal
from typing import Any

from surelane_worker import Context, Event, Handlers, StepError
from tests.system.durable_handlers import Log

handlers = Handlers()


class PaymentError(Exception):
    """The card was declined."""


def paying(log: Log) -> Any:
    """Return a function that notes that it charges the card, and fails the first time."""

    async def pay() -> str:
        log.add("charged")
        if log.path.read_text().splitlines().count("charged") == 1:
            raise PaymentError("card declined")
        return "receipt"

    return pay


@handlers.on("buy")
async def buy(event: Event, ctx: Context) -> Any:
    """Pay, and go on past a failure in the way that the payload names."""
    log = Log(event)
    try:
        await ctx.step("pay", paying(log))
    except StepError as error:
        told = {
            "type": error.type,
            "message": error.message,
            "where": error.where is not None and "failing_handlers.py" in error.where,
            "cause": type(error.__cause__).__name__,
            "text": str(error),
        }
        log.add("caught")
        match event.payload["how"]:
            case "wait":
                told["answer"] = await ctx.wait_for("answer")
            case "crash":
                await ctx.step("compensate", lambda: log.add("compensated"))
                log.die_once("after compensate")
            case "fail":
                raise
        return told
    return "Bought."


@handlers.on("buy-two")
async def buy_two(event: Event, ctx: Context) -> Any:
    """Pay beside another step and a wait, and let the failure be a result."""
    log = Log(event)

    async def other() -> str:
        log.add("other")
        return "other"

    done = await asyncio.gather(
        ctx.step("pay", paying(log)), ctx.step("other", other), ctx.wait_for("answer"), return_exceptions=True
    )
    return [each.type if isinstance(each, StepError) else each for each in done]


@handlers.on("buy-beside")
async def buy_beside(event: Event, ctx: Context) -> Any:
    """Let a failure end the attempt while another task goes from step to step."""
    log = Log(event)

    async def others() -> None:
        for number in range(1000):
            await ctx.step(f"other {number}", lambda: None)

    async with asyncio.TaskGroup() as group:
        group.create_task(others())
        await ctx.step("before", lambda: None)
        return await ctx.step("pay", paying(log))


@handlers.on("both")
async def both(event: Event, ctx: Context) -> Any:
    """Wait for two values at once, and go on only with both."""
    log = Log(event)

    async def wait(name: str) -> Any:
        answer = await ctx.wait_for(name)
        log.add(f"got {name}")
        return answer

    match event.payload["how"]:
        case "exceptions":
            got: Any = await asyncio.gather(wait("a"), wait("b"), return_exceptions=True)
        case "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(wait(name)) for name in "ab"]
            got = [task.result() for task in tasks]
        case "wait":
            tasks = [asyncio.create_task(wait(name)) for name in "ab"]
            await asyncio.wait(tasks)
            got = [task.result() for task in tasks]
        case _:
            got = await asyncio.gather(wait("a"), wait("b"))
    log.add("deployed")
    return got


@handlers.on("catch-all")
async def catch_all(event: Event, ctx: Context) -> Any:
    """Catch even what stops a suspended handler, and try to go on."""
    log, replies, queue = Log(event), ctx.slack, ctx.queue
    try:
        await ctx.wait_for("answer")
    except BaseException:  # noqa: BLE001 - what it is about
        for what in (
            lambda: ctx.step("deploy", lambda: log.add("deployed")),
            lambda: ctx.slack.reply(event, "deployed"),
            lambda: replies.reply(event, "deployed", channel="C1"),
            lambda: ctx.queue.enqueue("quick"),
            lambda: ctx.sleep("1ms"),
            lambda: ctx.wait_for("other"),
        ):
            try:
                await what()
                log.add("went on")
            except Exception as error:  # noqa: BLE001 - it must not look like an error of the call
                log.add(f"error {type(error).__name__}")
            except BaseException:  # noqa: BLE001 - what it is about
                pass
        assert queue is not None
        return "swallowed"
    log.add("answered")
    return event.claim


@handlers.on("first")
async def first(event: Event, ctx: Context) -> Any:
    """Take the first of two waits, die, and take it again although the other has ended, too."""
    log = Log(event)
    waits = {name: asyncio.create_task(ctx.wait_for(name)) for name in ("a", "b")}
    await asyncio.wait(waits.values(), return_when=asyncio.FIRST_COMPLETED)
    winners = [name for name, task in waits.items() if task.done()]
    log.add(f"winner {winners}")
    await ctx.step("use", lambda: winners)
    log.die_once("after use")
    return winners


@handlers.on("escalate")
async def escalate(event: Event, ctx: Context) -> Any:
    """Escalate unless a value comes in time, and wait for the value after that."""
    log = Log(event)
    waiting = asyncio.create_task(ctx.wait_for("answer"))
    pause = asyncio.create_task(ctx.sleep("50ms"))
    done, _ = await asyncio.wait({waiting, pause}, return_when=asyncio.FIRST_COMPLETED)
    if waiting not in done:
        log.add("escalates")
        await ctx.step("escalate", lambda: log.add("escalated"))
        log.die_once("after escalate")
        return ["escalated", await waiting]
    return ["answered", waiting.result()]


@handlers.on("slow-progress")
async def slow_progress(event: Event, ctx: Context) -> Any:
    """Store one step per life of the worker; from the step that the payload names on, store nothing."""
    log = Log(event)
    for number in range(event.payload["steps"]):
        if number == event.payload.get("poison"):
            log.add("poisoned")
            os.kill(os.getpid(), signal.SIGKILL)
        await ctx.step("work", lambda number: number, number)
        log.die_once(f"after {number}")
    return "all"


@handlers.on("fails-once", max_attempts=1)
async def fails_once(event: Event, ctx: Context) -> None:  # noqa: ARG001 - a handler takes both arguments
    raise LookupError


@handlers.on("fails-often", max_attempts=5, backoff="1ms")
async def fails_often(_: Event, ctx: Context) -> Any:
    """Fail in each attempt."""
    raise RuntimeError(f"attempt {ctx.attempt}")


@handlers.on("retrying")
async def retrying(event: Event, ctx: Context) -> Any:
    """Call a step that fails twice, with long pauses between its tries."""
    log = Log(event)

    async def call() -> int:
        log.add("called")
        if (tries := log.path.read_text().count("called")) < event.payload["fails"] + 1:
            raise RuntimeError(f"try {tries}")
        return tries

    return [await ctx.step("call", call, retries=2, backoff=event.payload["backoff"]), ctx.attempt]


@handlers.on("side-by-side")
async def side_by_side(event: Event, ctx: Context) -> Any:
    """Run steps of one name at once, with keys if the payload says so; fail in the first attempt afterwards."""
    log = Log(event)

    async def fetch(item: str, pause: float) -> str:
        log.add(f"fetched {item}")
        await asyncio.sleep(pause)
        return f"result of {item}"

    async def one(item: str, pause: float) -> str:
        # The later attempt comes to the steps in another order.
        await asyncio.sleep(pause if event.claim == 1 else 0.02 - pause)
        key = item if event.payload["keys"] else None
        return str(await ctx.step("fetch", lambda: fetch(item, pause), key=key))

    items = {"a": 0.02, "b": 0.01, "c": 0.0}
    results = await asyncio.gather(*(one(item, pause) for item, pause in items.items()))
    if event.claim == 1:
        raise RuntimeError("once more")
    return dict(zip(items, results, strict=True))
