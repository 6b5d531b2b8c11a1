"""Limits of handlers, which workers keep together, and the slots of commands."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from surelane.testing import fleet, virtual
from surelane_worker import Context, Event, Handlers, Limit


class Limited:
    """Handlers with limits, which note how many ran at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.handlers = Handlers()

        @self.handlers.on("two-at-once", limit=Limit(concurrency=2))
        async def two_at_once(_: Event, __: Context) -> None:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.1)
            self.now -= 1

        @self.handlers.on("five-a-day", limit=Limit(rate="5/1d"))
        async def five_a_day(_: Event, __: Context) -> None: ...

        @self.handlers.on("per-customer", limit=Limit(rate="1/1d", per=lambda payload: payload["customer"]))
        async def per_customer(_: Event, __: Context) -> None: ...

        @self.handlers.on("start")
        async def start(_: Event, ctx: Context) -> list[int]:
            names = ("ada", "ada", "bob")
            return [await ctx.queue.enqueue("per-customer", {"customer": name}) for name in names]


async def why(f: Any, event: Any) -> str:
    ((reason, detail),) = await f.sql("select reason, detail from agent.why_waiting($1)", event.id)
    return f"{reason}: {detail}"


@virtual
async def test_two_workers_keep_the_limits_together() -> None:
    """What is over a limit waits, without an attempt. A changed limit holds at once, while all workers are idle."""
    limited = Limited()
    async with fleet(limited.handlers, workers=2) as f:
        await f.sleep(10)
        some = [await f.enqueue("two-at-once") for _ in range(20)]
        daily = [await f.enqueue("five-a-day") for _ in range(7)]
        for event in (*some, *daily[:5]):
            await event.result()
        assert limited.most == 2
        assert (await why(f, daily[5])).startswith("limited: 5 events per 24:00:00 ")
        row = await daily[5].row()
        assert (row["attempts"], row["claimed_by"], row["claimed"]) == (0, None, [])
        for rate, event in ((6, daily[5]), (0, daily[6])):
            period = "'1 day'" if rate else "null"
            await f.sql(f"select agent.set_limit('five-a-day', null, {rate}, {period}, null)")
            await event.result("20s")
        ids = await (await f.enqueue("start")).result()
        first, second, third = [await f.stored(identity) for identity in ids]
        for event, name in ((first, "ada"), (third, "bob")):
            row = await f.until(event.ended)
            assert row["changes"][0]["limit_key"] == f"given:{name}"
        assert (await why(f, second)).startswith("limited: ")
        assert "given:ada" in await why(f, second)


@pytest.mark.parametrize("foreign", [False, True], ids=["at once", "after a foreign transaction"])
@virtual
async def test_a_new_limit_holds_from_the_first_claim_on(foreign: bool) -> None:
    """Its events waited before any worker declared it, perhaps while an operator's change to it was open."""
    limited = Limited()
    async with fleet(limited.handlers, workers=0) as f:
        some = [await f.enqueue("two-at-once") for _ in range(20)]
        if foreign:
            holder = await f.database.lend("surelane")
            change = "begin; select agent.set_limit('two-at-once', 30, null, null, null)"
            await f.database.run(holder, "execute", change)
        with capture_logs() as logs:
            f.start()
            if foreign:
                await f.sleep(10)
                assert any("limit is locked by another" in entry["event"] for entry in logs)
                assert await f.sql("select from agent.job where attempts > 0") == []
                f.database.end(holder)
            for event in some:
                await event.result()
        assert limited.most == 2


# --- Slots of commands


@virtual
async def test_full_interactive_slots_pass_on_and_the_ordinary_ones_take_no_command() -> None:
    handlers, gate = Handlers(), asyncio.Event()

    @handlers.on("hold")
    @handlers.command("/hold")
    async def hold(_: Event, __: Context) -> None:
        await gate.wait()

    @handlers.shortcut(ordered=True)
    async def ordered(_: Event, __: Context) -> None: ...

    one = {
        "SURELANE_CONCURRENCY": "1",
        "SURELANE_INTERACTIVE_CONCURRENCY": "1",
        "SURELANE_POLL_INTERVAL": "1h",
    }
    async with fleet(handlers, workers=2, settings=one) as f:
        await f.sleep(20)
        held = []
        for number in range(3):
            command = {"command": "/hold", "trigger_id": f"{number}", "team_id": "T1", "channel_id": "C1"}
            held.append(await f.post(command))
            await f.sleep(2)
        rows = [await event.row() for event in held]
        assert {rows[0]["claimed_by"], rows[1]["claimed_by"]} == {"worker-1", "worker-2"}
        assert (rows[2]["claimed_by"], rows[2]["attempts"]) == (None, 0)
        shortcut = {"type": "shortcut", "callback_id": "ordered", "trigger_id": "9"}
        turn = await f.post({**shortcut, "team": {"id": "T1"}, "channel": {"id": "C1"}})
        await turn.result()  # in an ordinary slot: the others are full
        assert (await turn.row())["group_key"] is not None
        job = await f.enqueue("hold")
        await f.sleep(2)
        assert (await job.row())["claimed_by"] is not None
        gate.set()
        for event in (*held, job):
            await event.result()
