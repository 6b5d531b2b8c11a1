"""Durable handlers: what a handler saw end has ended in each run, and nothing is undone while it still runs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from surelane.testing import fleet, virtual
from surelane_encryption.keys import new_key
from surelane_worker import Context, Event, Handlers
from surelane_worker.errors import StepError

SOON = {"SURELANE_SESSION_GRACE": "100ms", "SURELANE_SWEEP_INTERVAL": "1s"}


class Shop:
    """Notes what is done, and kills its worker once where a program says so."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fleet: Any = None

    async def die(self) -> None:
        if "dies" not in self.log:
            self.log.append("dies")
            await self.fleet.die()

    async def pay(self, seconds: float = 3) -> str:
        """Charge after some seconds: that it begins is noted, too."""
        self.log.append("pays")
        await asyncio.sleep(seconds)
        self.log.append("paid")
        return "receipt"

    def book(self, seconds: float = 3) -> str:
        """Book in a thread, which takes some seconds."""
        self.log.append("books")
        loop: asyncio.AbstractEventLoop = self.fleet.loop
        asyncio.run_coroutine_threadsafe(asyncio.sleep(seconds), loop).result()
        self.log.append("booked")
        return "booking"

    def unbook(self) -> None:
        self.log.append("unbooked" if "booked" in self.log else "nothing to unbook")

    def fail(self, times: int = 1) -> None:
        self.log.append("fails")
        if self.log.count("fails") <= times:
            raise LookupError("not now")


Program = Callable[[Shop, Event, Context], Coroutine[Any, Any, Any]]


def running(program: Program) -> tuple[Shop, Handlers]:
    """Return a shop, and handlers of the kind ``program`` that run a program in it."""
    shop, handlers = Shop(), Handlers()

    @handlers.on("program", backoff="1ms")
    async def run(event: Event, ctx: Context) -> Any:
        return await program(shop, event, ctx)

    return shop, handlers


async def release(shop: Shop, ctx: Context) -> str:
    """Go on past a payment that was given up, and die."""
    await ctx.step("release", shop.log.append, "released")
    await shop.die()
    await ctx.sleep("1m")
    return "released"


# --- What was cut off


async def timeout(shop: Shop, _: Event, ctx: Context) -> str:
    try:
        async with asyncio.timeout(1):
            await ctx.step("pay", shop.pay)
    except TimeoutError:
        return await release(shop, ctx)
    return "shipped"


async def wait_for(shop: Shop, _: Event, ctx: Context) -> str:
    with suppress(TimeoutError):
        return str(await asyncio.wait_for(ctx.step("pay", shop.pay), 1))
    return await release(shop, ctx)


async def cancelled_task(shop: Shop, _: Event, ctx: Context) -> str:
    paying = asyncio.create_task(ctx.step("pay", shop.pay))
    await ctx.step("look", asyncio.sleep, 1)
    paying.cancel()
    await asyncio.wait([paying])
    return "shipped" if not paying.cancelled() else await release(shop, ctx)


async def lost_race(shop: Shop, _: Event, ctx: Context) -> str:
    paying, going = asyncio.create_task(ctx.step("pay", shop.pay)), asyncio.create_task(ctx.sleep("1s"))
    await asyncio.wait({paying, going}, return_when=asyncio.FIRST_COMPLETED)
    if paying.done():
        return "shipped"
    paying.cancel()
    return await release(shop, ctx)


async def guard(shop: Shop, _: Event, ctx: Context) -> str:
    async def watch() -> None:
        await asyncio.sleep(1)
        raise PermissionError("not allowed")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("pay", shop.pay))
            group.create_task(watch())
    except* PermissionError:
        await release(shop, ctx)
    return "released" if "released" in shop.log else "shipped"


async def beside_a_timeout(shop: Shop, event: Event, ctx: Context) -> str:
    async def look() -> None:
        async with asyncio.timeout(0.5):
            await ctx.step("look", lambda: None)

    async with asyncio.TaskGroup() as group:
        paying = group.create_task(timeout(shop, event, ctx))
        await ctx.step("slow", asyncio.sleep, 2)
        group.create_task(look())
    return paying.result()


async def of_anyio(shop: Shop, _: Event, ctx: Context) -> str:
    try:
        with anyio.fail_after(1):
            await ctx.step("pay", shop.pay)
    except TimeoutError:
        return await release(shop, ctx)
    return "shipped"


async def in_a_manager(shop: Shop, _: Event, ctx: Context) -> str:
    @asynccontextmanager
    async def within(seconds: float) -> AsyncIterator[None]:
        async with asyncio.timeout(seconds):
            yield

    try:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(within(1))
            await ctx.step("pay", shop.pay)
    except TimeoutError:
        return await release(shop, ctx)
    return "shipped"


async def in_task_of_task(shop: Shop, event: Event, ctx: Context) -> str:
    return await asyncio.create_task(timeout(shop, event, ctx))


@pytest.mark.parametrize(
    "program",
    [
        *(timeout, wait_for, cancelled_task, lost_race, guard, beside_a_timeout),
        *(of_anyio, in_a_manager, in_task_of_task),
    ],
    ids=lambda each: each.__name__,
)
@virtual
async def test_a_step_that_was_cut_off_does_not_run_again(program: Program) -> None:
    shop, handlers = running(program)
    async with fleet(handlers, settings=SOON) as shop.fleet:
        assert await (await shop.fleet.enqueue("program")).result() == "released"
    assert shop.log == ["pays", "released", "dies"]


async def shielded(paying: asyncio.Task[str], seconds: float) -> bool:
    try:
        await asyncio.wait_for(asyncio.shield(paying), seconds)
    except TimeoutError:
        return False
    return True


async def waited_for(paying: asyncio.Task[str], seconds: float) -> bool:
    return paying in (await asyncio.wait({paying}, timeout=seconds))[0]


@pytest.mark.parametrize("then", ["reply", "step"])
@pytest.mark.parametrize("seconds", [1.5, 90])
@pytest.mark.parametrize("soon", [shielded, waited_for], ids=lambda each: each.__name__)
@virtual
async def test_a_timeout_beside_a_step_that_goes_on_passes_in_each_run(
    soon: Callable[..., Any], seconds: float, then: str
) -> None:
    async def program(shop: Shop, event: Event, ctx: Context) -> str:
        paying = asyncio.create_task(ctx.step("pay", lambda: shop.pay(2 * seconds)))
        if not await soon(paying, seconds):
            await ctx.slack.reply(event, "still paying", channel="C1")
            if then == "step":
                await ctx.step("note", shop.log.append, "slow")
        receipt = str(await paying)
        await shop.die()
        await ctx.slack.reply(event, receipt, channel="C1")
        return receipt

    shop, handlers = running(program)
    async with fleet(handlers, settings=SOON) as shop.fleet:
        assert await (await shop.fleet.enqueue("program")).result() == "receipt"
        said = [each["text"] for each in shop.fleet.slack.messages]
    past = ["slow"] if then == "step" else []
    assert (shop.log, said) == (["pays", *past, "paid", "dies"], ["still paying", "receipt"])


async def wait_cut_off(shop: Shop, _: Event, ctx: Context) -> str:
    with suppress(TimeoutError):
        return str(await asyncio.wait_for(ctx.wait_for("go"), 1))
    await release(shop, ctx)
    return f"released, {await ctx.wait_for('go')}"


async def sleep_cut_off(shop: Shop, _: Event, ctx: Context) -> str:
    with suppress(TimeoutError):
        await asyncio.wait_for(ctx.sleep("30s"), 1)
        return "slept"
    return f"{await release(shop, ctx)}, {await ctx.wait_for('go')}"


@pytest.mark.parametrize("program", [wait_cut_off, sleep_cut_off], ids=lambda each: each.__name__)
@virtual
async def test_a_wait_that_was_cut_off_ends_so_again_its_signal_goes_to_the_next(program: Program) -> None:
    shop, handlers = running(program)
    async with fleet(handlers, settings=SOON) as shop.fleet:
        event = await shop.fleet.enqueue("program")
        await shop.fleet.until(lambda: "dies" in shop.log)
        await shop.fleet.signal(event, "go", "went")
        assert await event.result() == "released, went"
    assert shop.log == ["released", "dies"]


@virtual
async def test_a_step_after_one_that_was_cut_off_is_in_the_handlers_order() -> None:
    async def renamed(shop: Shop, event: Event, ctx: Context) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await ctx.step("pay", shop.pay)
        await ctx.step("old" if event.claim == 1 else "new", lambda: None)
        raise RuntimeError("once more")

    shop, handlers = running(renamed)
    async with fleet(handlers) as shop.fleet:
        errors = await (await shop.fleet.enqueue("program", max_attempts=2)).errors()
    assert errors[-1].startswith("StepMismatchError: new is new, but this run has stored old")
    assert shop.log == ["pays"]


# --- What still runs


async def cancelled(shop: Shop, _: Event, ctx: Context) -> None:
    await ctx.undo("book", shop.unbook)
    await ctx.step("book", shop.book)


async def cancelled_for_long(shop: Shop, _: Event, ctx: Context) -> None:
    await ctx.undo("book", shop.unbook)
    await ctx.step("book", shop.book, 30)


async def undo_after(shop: Shop, _: Event, ctx: Context) -> None:
    await ctx.undo("look", lambda: None)
    await ctx.step("book", shop.book)
    await ctx.undo("book", shop.unbook)
    await ctx.wait_for("never")


async def beside_failing(shop: Shop, _: Event, ctx: Context) -> None:
    await ctx.undo("book", shop.unbook)
    await asyncio.gather(ctx.step("book", shop.book), ctx.step("fail", shop.fail, 9))


async def group_failing(shop: Shop, _: Event, ctx: Context) -> None:
    await ctx.undo("book", shop.unbook)
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.step("book", shop.book, 40))
        group.create_task(ctx.step("fail", shop.fail, 9))


@pytest.mark.parametrize(
    ("program", "cancels"),
    [
        (cancelled, True),
        (cancelled_for_long, True),
        (undo_after, True),
        (beside_failing, False),
        (group_failing, False),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
@virtual
async def test_an_undo_begins_once_its_step_has_ended(program: Program, cancels: bool) -> None:
    shop, handlers = running(program)
    async with fleet(handlers, settings=SOON) as shop.fleet:
        event = await shop.fleet.enqueue("program")
        await shop.fleet.until(lambda: "books" in shop.log)
        if cancels:
            await shop.fleet.cancel(event)
        row = await shop.fleet.until(event.ended)
        assert row["outcome"] == ("cancelled" if cancels else "failed")
    assert [line for line in shop.log if line != "fails"] == ["books", "booked", "unbooked"]


@virtual
async def test_an_undo_that_could_not_wait_says_so() -> None:
    async def program(shop: Shop, _: Event, ctx: Context) -> None:
        await ctx.undo("book", shop.unbook)
        await ctx.step("book", shop.book, 600)

    shop, handlers = running(program)
    async with fleet(handlers, settings=SOON) as shop.fleet:
        event = await shop.fleet.enqueue("program")
        await shop.fleet.until(lambda: "books" in shop.log)
        await shop.fleet.cancel(event)
        assert await event.errors() == ["UnfinishedError: its undos began although its handler may still run"]
    assert shop.log == ["books", "nothing to unbook"]


@virtual
async def test_a_step_does_not_begin_again_beside_its_first_run() -> None:
    async def program(shop: Shop, _: Event, ctx: Context) -> Any:
        return await asyncio.gather(ctx.step("book", shop.book), ctx.step("fail", shop.fail))

    shop, handlers = running(program)
    async with fleet(handlers) as shop.fleet:
        assert await (await shop.fleet.enqueue("program")).result() == ["booking", None]
    assert shop.log == ["books", "fails", "booked", "fails"]


DEADLY = 99


@pytest.mark.parametrize(
    ("fails", "dies", "undone"),
    [
        ({5: DEADLY}, {}, [9, 8, 7, 6, 4, 3, 2, 1, 0]),
        ({9: 2}, {}, [8, 7, 6, 5, 4, 3, 2, 1, 0, 9]),
        ({}, {5: DEADLY}, [9, 8, 7, 6, 4, 3, 2, 1, 0]),
        ({5: DEADLY}, {9: 2, 4: 2, 0: 2}, [9, 8, 7, 6, 4, 3, 2, 1, 0]),
        ({9: DEADLY}, {8: DEADLY, 0: DEADLY}, [7, 6, 5, 4, 3, 2, 1]),
        (dict.fromkeys(range(10), DEADLY), {}, []),
    ],
)
@virtual
async def test_each_undo_has_own_attempts(
    fails: dict[int, int], dies: dict[int, int], undone: list[int]
) -> None:
    begun, told = list[int](), list[str]()

    async def program(shop: Shop, _: Event, ctx: Context) -> None:
        async def undo(number: int) -> None:
            begun.append(number)
            if begun.count(number) <= dies.get(number, 0):
                await shop.fleet.die()
            if begun.count(number) <= fails.get(number, 0):
                raise LookupError(f"no {number}")
            shop.log.append(str(number))

        for number in range(10):
            await ctx.undo(f"u{number}", undo, number)
        raise RuntimeError("no visa")

    shop, handlers = running(program)

    @handlers.on_failure("program")
    async def hook(event: Event, _: Context) -> None:
        told.append(str(event.payload))

    async with fleet(handlers, settings=SOON) as shop.fleet:
        event = await shop.fleet.enqueue("program", max_attempts=1)
        errors = await event.errors()
        await shop.fleet.until(lambda: told)
    assert shop.log == [str(number) for number in undone]
    left = [f"undo u{number}" for number in range(9, -1, -1) if number not in undone]
    last = errors[-1].removeprefix("UndoError: not undone: ").split(", ")
    assert sorted(last) == sorted(left or [errors[-1]])
    assert all(each in told[0] for each in left)
    assert all(begun.count(number) <= 3 for number in {*fails, *dies})


# --- What people see


async def replies(_: Shop, event: Event, ctx: Context) -> None:
    await ctx.slack.reply(event, "Nothing was bought", channel="C1")


async def streams(_: Shop, event: Event, ctx: Context) -> None:
    async with ctx.slack.stream(event, channel="C1", thread_ts="1.0", interval=0) as stream:
        await stream.append("Nothing was bought")


async def updates(_: Shop, __: Event, ctx: Context) -> None:
    await ctx.slack.publish_home("U1", {"type": "home"})


async def calls(_: Shop, __: Event, ctx: Context) -> None:
    await ctx.slack.client.chat_postMessage(channel="C1", text="Nothing was bought")


async def tags(_: Shop, __: Event, ctx: Context) -> None:
    await ctx.tag(bought="no")


async def enqueues(_: Shop, __: Event, ctx: Context) -> None:
    await ctx.queue.enqueue("told", item_key="told")


async def signals(_: Shop, __: Event, ctx: Context) -> None:
    await ctx.queue.signal("unknown", "told")


@pytest.mark.parametrize(
    "show", [replies, streams, updates, calls, tags, enqueues, signals], ids=lambda each: each.__name__
)
@virtual
async def test_a_failure_that_was_caught_is_final_before_anything_is_seen(show: Program) -> None:
    async def program(shop: Shop, event: Event, ctx: Context) -> str:
        try:
            await asyncio.create_task(ctx.step("buy", shop.fail))
        except StepError:
            await show(shop, event, ctx)
            await shop.die()
            return "not bought"
        return "bought"

    shop, handlers = running(program)

    @handlers.on("told")
    async def told(_: Event, __: Context) -> None: ...

    async with fleet(handlers, settings=SOON) as shop.fleet:
        assert await (await shop.fleet.enqueue("program")).result() == "not bought"
    assert shop.log == ["fails", "dies"]


# --- What goes on beside a wait


async def escalates(shop: Shop, event: Event, ctx: Context) -> Any:
    waiting = asyncio.create_task(ctx.wait_for("go"))
    await asyncio.sleep(0)
    await ctx.slack.reply(event, "looking", channel="C1")
    await asyncio.sleep(2)
    shop.log.append("escalates")
    return await waiting


async def speaks(shop: Shop, event: Event, ctx: Context) -> Any:
    waiting = asyncio.create_task(ctx.wait_for("go"))
    async with ctx.slack.stream(event, channel="C1", thread_ts="1.0") as stream:
        for word in ("one ", "two ", "three"):
            await asyncio.sleep(1)
            await stream.append(word)
    shop.log.append("escalates")
    return await waiting


async def in_thread(shop: Shop, _: Event, ctx: Context) -> Any:
    waiting = asyncio.create_task(ctx.wait_for("go"))
    await asyncio.to_thread(shop.book, 2)
    shop.log.append("escalates")
    return await waiting


@pytest.mark.parametrize("program", [escalates, speaks, in_thread], ids=lambda each: each.__name__)
@virtual
async def test_what_goes_on_beside_a_wait_is_not_cut_off(program: Program) -> None:
    shop, handlers = running(program)
    async with fleet(handlers) as shop.fleet:
        event = await shop.fleet.enqueue("program")
        await shop.fleet.until(lambda: "escalates" in shop.log)
        await shop.fleet.until(event.suspended)
        await shop.fleet.signal(event, "go", "went")
        assert "went" in str(await event.result())


@virtual
async def test_a_wait_ends_beside_what_goes_on_without_end() -> None:
    async def program(_: Shop, __: Event, ctx: Context) -> Any:
        waits = [
            asyncio.create_task(each) for each in (ctx.wait_for("go"), ctx.sleep("20s"), ctx.run("child"))
        ]
        waits.append(asyncio.create_task(ctx.wait_for("late", timeout="10s", default="passed")))
        while not all(each.done() for each in waits):  # noqa: ASYNC110 - what it is about
            await asyncio.sleep(1)
        return [each.result() for each in waits], ctx.attempt

    shop, handlers = running(program)

    @handlers.on("child")
    async def child(_: Event, __: Context) -> str:
        return "grown"

    async with fleet(handlers) as shop.fleet:
        event = await shop.fleet.enqueue("program")
        await shop.fleet.sleep("5s")
        await shop.fleet.signal(event, "go", "went")
        assert await event.result("25s") == [["went", None, "grown", "passed"], 1]
        assert len((await event.row())["claimed"]) == 1


# --- Signals of a handler that continues as a new event


@pytest.mark.parametrize(("encrypted", "drains"), [(False, False), (True, True)])
@virtual
async def test_accepted_signals_go_on_with_a_handler_that_continues(encrypted: bool, drains: bool) -> None:
    got, sent = list[int](), list[int]()

    async def program(_: Shop, event: Event, ctx: Context) -> Any:
        got.append(await ctx.wait_for("item"))
        left = event.payload["left"] - 1
        if event.payload["drains"]:
            while (item := await ctx.wait_for("item", timeout=0)) is not None:
                got.append(item)
        return ctx.continue_as_new({**event.payload, "left": left}) if left else "done"

    _, handlers = running(program)

    @handlers.on("send")
    async def send(_: Event, ctx: Context) -> None:
        for number in range(40):
            if await ctx.queue.signal("loop", "item", number) == "sent":
                sent.append(number)
            await asyncio.sleep(0.03 if number % 7 else 0)

    keys = {"SURELANE_ENCRYPTION_KEYS": new_key(), "SURELANE_ENCRYPT_EVENTS": "true"} if encrypted else {}
    async with fleet(handlers, settings=keys) as f:
        await f.enqueue("program", {"left": 20, "drains": drains}, item_key="loop")
        await (await f.enqueue("send")).result()
        await f.until(lambda: got == (sent if drains else sent[:20]))
