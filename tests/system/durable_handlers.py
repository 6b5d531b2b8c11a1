"""Handle the events of the durable handlers' tests in real worker processes."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from surelane_worker import Context, Event, Handlers

handlers = Handlers()


class Log:
    """A file in which a run notes what it does, across deaths of its worker."""

    def __init__(self, event: Event) -> None:
        self.path = Path(event.payload["log"])

    def add(self, what: str) -> None:
        """Note something."""
        with self.path.open("a") as file:
            file.write(f"{what}\n")

    def die_once(self, where: str) -> None:
        """Kill this process, the first time it gets here."""
        died = f"died {where}"
        if not self.path.exists() or died not in self.path.read_text().splitlines():
            self.add(died)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)


class Plan(BaseModel):
    """A model that goes through a step."""

    text: str
    numbers: list[int]


@handlers.on("mortal")
async def mortal(event: Event, ctx: Context) -> object:
    """Die before, in and after every step and wait, once each."""
    log = Log(event)

    def plan(text: str) -> Plan:
        log.die_once("in plan")
        log.add("ran plan")
        return Plan(text=text, numbers=[1, 2])

    async def count(number: int) -> int:
        log.die_once(f"in count {number}")
        log.add(f"ran count {number}")
        return number * 2

    log.die_once("at start")
    made = await ctx.step("plan", plan, "deploy")
    assert isinstance(made, Plan)
    log.die_once("after plan")
    total = 0
    for number in made.numbers:
        total += await ctx.step("count", count, number)
        log.die_once(f"after count {number}")
    await ctx.sleep("50ms")
    log.die_once("after sleep")
    answer = await ctx.wait_for("answer")
    log.die_once("after answer")
    total += await ctx.step("last", count, answer)
    log.die_once("at end")
    return {"total": total, "text": made.text, "attempt": ctx.attempt}


@handlers.on("steps")
async def steps(event: Event, ctx: Context) -> Any:
    """Run steps as the payload says, and fail afterwards on the first attempt."""
    log = Log(event)

    def call(name: str) -> str:
        log.add(name)
        return name

    done = [await ctx.step(name, call, argument) for name, argument in event.payload[f"run{event.claim}"]]
    if event.claim < event.payload["runs"]:
        raise RuntimeError("once more")
    return done


@handlers.on("result")
async def result(event: Event, ctx: Context) -> Any:
    """Return what a step made of the payload's value."""
    values: dict[str, Any] = {
        "object": object(),
        "nan": float("nan"),
        "large": "x" * 1_000_001,
        "tuple": (1, "a\0b"),
    }
    return await ctx.step("make", lambda: values[event.payload["value"]])


@handlers.on("flaky")
async def flaky(event: Event, ctx: Context) -> Any:
    """Call a step that fails the first time, and one that hangs the first time."""
    log = Log(event)

    async def fail_first() -> str:
        log.add("called")
        if log.path.read_text().count("called") == 1:
            raise RuntimeError("not yet")
        return "done"

    return await ctx.step("flaky", fail_first, retries=1)


@handlers.on("sleep")
async def sleep(event: Event, ctx: Context) -> Any:
    """Sleep, and catch everything that can be caught."""
    try:
        await ctx.sleep(event.payload.get("pause", "50ms"), blocking=event.payload.get("blocking", False))
    except Exception:  # noqa: BLE001 - what it is about
        return "caught"
    return {"claim": event.claim, "attempt": ctx.attempt}


@handlers.on("sleep-in-thread")
def sleep_in_thread(event: Event, ctx: Context) -> Any:
    """Sleep in a synchronous handler."""
    number = ctx.run(ctx.step("one", lambda: 1))
    ctx.run(ctx.sleep("10ms"))
    return number + event.claim


@handlers.on("swallow")
async def swallow(event: Event, ctx: Context) -> Any:
    """Swallow even what ends a suspended handler."""
    try:
        await ctx.sleep("10ms")
    except BaseException:  # noqa: BLE001 - what it is about
        return "swallowed"
    return event.claim


@handlers.on("wait")
async def wait(event: Event, ctx: Context) -> Any:
    """Wait for values, as often as the payload says."""
    return [
        await ctx.wait_for("value", timeout=event.payload.get("timeout"), default="nothing")
        for _ in range(event.payload.get("times", 1))
    ]


@handlers.on("branches")
async def branches(event: Event, ctx: Context) -> Any:
    """Run a slow step beside a wait."""
    log = Log(event)

    async def slow() -> str:
        await asyncio.sleep(0.1)
        log.add("slow")
        return "slow"

    return await asyncio.gather(ctx.wait_for("value"), ctx.step("slow", slow))


@handlers.on("quick")
async def quick(event: Event, _: Context) -> None:
    """Do nothing."""


@handlers.on("renamed")
async def renamed(event: Event, ctx: Context) -> Any:
    """Use a name for a step first, and then for a sleep."""
    if event.claim == 1:
        await ctx.step("name", lambda: 1)
        raise RuntimeError("once more")
    return await ctx.sleep("1s", name="name")


@handlers.on("tagged")
async def tagged(event: Event, ctx: Context) -> None:
    """Set the payload's tags, also in a second attempt."""
    await ctx.tag(**event.payload["tags"])
    if event.attempts == 1:
        raise RuntimeError("once more")
    await ctx.tag(attempt=event.attempts, gone=None)


@handlers.on("telling")
async def telling(event: Event, ctx: Context) -> None:
    """Tell the progress often, then wait, then end."""
    for number in range(200):
        await ctx.progress(f"{number} of 200 files")
        await asyncio.sleep(0)
    await ctx.wait_for("go")
    await ctx.progress(event.payload["last"])


@handlers.on("hang")
async def hang(event: Event, ctx: Context) -> Any:
    """Wait to be cancelled; the payload says what then."""
    log = Log(event)
    log.add("began")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        log.add(f"cancelled {ctx.cancelled}")
        if event.payload.get("ignore"):
            return "done all the same"
        raise


@handlers.on("block")
async def block(event: Event, _: Context) -> Any:
    """Block the whole worker, so that it hears nothing."""
    Log(event).add("began")
    time.sleep(event.payload["seconds"])  # noqa: ASYNC251 - what it is about
    return "late"


CHOICES = ["Approve", "Reject"]


@handlers.on("slack.app_mention")
async def mentioned(event: Event, ctx: Context) -> Any:
    """Ask as the text says, with a reply before and after."""
    words = event.slack["text"].split()
    await ctx.slack.reply(event, "before")
    if "stoppable" in words:
        async with ctx.stoppable(event):
            await asyncio.sleep(60 if "long" in words else 0)
        return "ended"
    await ctx.step("in a step", ctx.slack.reply, event, "in a step")
    choices = (
        None if "text" in words else [f"v{number}" for number in range(7)] if "menu" in words else CHOICES
    )
    if "raced" in words:
        asking = asyncio.create_task(ctx.ask(event, "Deploy?", choices))
        await asyncio.wait({asking, asyncio.create_task(ctx.sleep("50ms"))}, return_when="FIRST_COMPLETED")
        return f"answered: {asking.done()}"
    by: Any = (lambda user: user == event.slack["user"]) if "judged" in words else None
    answer = await ctx.ask(
        event,
        "Deploy?",
        choices,
        timeout="100ms" if "timeout" in words else None,
        by=event.slack["user"] if "mine" in words else by,
        blocking="blocking" in words,
    )
    await ctx.slack.reply(event, "after")
    return None if answer is None else [answer.choice, answer.user]


@handlers.on_group("together")
async def together(events: list[Event], ctx: Context) -> Any:
    """Take a step for several events, which have none."""
    return await ctx.step("one", len, [event.id for event in events])


@handlers.on("overtaking")
async def overtaking(event: Event, ctx: Context) -> list[str]:
    """Run steps at once. Each ends after the result of the one before it in ``ends`` was got. Return who got theirs."""
    ends, came = event.payload["ends"], list[str]()
    passed = {name: asyncio.Event() for name in ends}

    async def run(name: str, before: str | None) -> None:
        await ctx.step(name, passed[before].wait if before else lambda: True)
        came.append(name)
        passed[name].set()

    await asyncio.gather(
        *(run(name, before) for name, before in sorted(zip(ends, [None, *ends], strict=False)))
    )
    await ctx.sleep("50ms")
    return came


@handlers.on("nested")
async def nested(event: Event, ctx: Context) -> Any:
    """Wait within a step."""

    async def outer() -> None:
        await ctx.sleep(event.payload.get("pause", "1s"))

    await ctx.step("outer", outer)
