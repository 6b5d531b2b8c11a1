"""What a worker sends to Slack in its last moment may arrive after its death: it is there once all the same."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from surelane.testing import fleet, virtual
from surelane_dev.testing.fleets.wire import Wire
from surelane_worker import Context, Event, Handlers
from tests.fleet.statements import statements

SOON = {"SURELANE_SESSION_GRACE": "100ms", "SURELANE_SWEEP_INTERVAL": "1s"}
Said = Callable[[Event, Context], Awaitable[Any]]


async def reply(event: Event, ctx: Context) -> None:
    await ctx.slack.reply(event, "w0 w1 w2 ", channel="C1")


async def stream(event: Event, ctx: Context) -> None:
    where = {"channel": "C1", "thread_ts": "1.0", "recipient_user_id": "U1"}
    async with ctx.slack.stream(event, interval=0, **where) as stream:
        for word in ("w0 ", "w1 ", "w2 "):
            await stream.append(word)
            await asyncio.sleep(0.2)


async def in_a_step(event: Event, ctx: Context) -> None:
    await ctx.step("say", reply, event, ctx)


@pytest.mark.parametrize("say", [reply, stream, in_a_step], ids=lambda each: each.__name__)
@pytest.mark.parametrize("late", [0.1, 0.8, 3.0])
@virtual
async def test_a_message_that_arrives_after_its_workers_death_is_there_once(say: Said, late: float) -> None:
    handlers, noted = Handlers(), list[str]()

    @handlers.on("say", backoff="1ms")
    async def handle(event: Event, ctx: Context) -> None:
        await say(event, ctx)

    async def hold_up(_: Wire, query: str, __: Any) -> None:
        if "note_event" in query and not noted:
            noted.append(query)
            f.net.delay = lambda: late  # type: ignore[method-assign]

    async with fleet(handlers, settings=SOON) as f:
        usual = f.net.delay
        with statements(after=hold_up):
            event = await f.enqueue("say")
            await f.until(lambda: noted)
            await f.sleep(late / 2)
            f.net.delay = usual  # type: ignore[method-assign]
            await f.kill()
            f.start()
            await event.result()
        await f.sleep("10s")
        assert [message["text"] for message in f.slack.messages] == ["w0 w1 w2 "]
