"""However a row's place in its group changes, the messages of a thread run in order."""

import itertools
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from surelane.calls import Connection
from tests.sql import queue_steps as do
from tests.sql.queue_steps import HOUR, MINUTE, Row, pair

GROUP = "T:C:1"
KINDS = ("plain", "other", "limited")
Step = Callable[[Connection, list[Row]], Awaitable[object]]


def calling(*statements: str) -> Step:
    async def call(queue: Connection, rows: list[Row]) -> None:
        for statement in statements:
            await queue.execute(statement.replace("$first", f"'{rows[0]['kind']}'"))

    return call


def releasing(*places: int) -> Step:
    """Release some of what is claimed, each in a transaction of its own. Then the worker dies."""

    async def release(queue: Connection, rows: list[Row]) -> None:
        for place in places:
            if place < len(rows):
                await do.release(queue, pair(rows[place]))
        await do.advance(queue, HOUR)

    return release


async def fail_first(queue: Connection, rows: list[Row]) -> None:
    await do.fail(queue, pair(rows[0]), retry_in=MINUTE)
    await do.advance(queue, HOUR)


CLAIMED: dict[str, Step] = {
    "released one by one": releasing(0, 1, 2),
    "died after a release": releasing(0),
    "died after two releases": releasing(0, 1),
    "died after the release of a later one": releasing(1),
    "died after the releases of later ones": releasing(2, 1),
    "failed and died": fail_first,
    "paused meanwhile": calling("select agent.pause_kind($first)", "select agent.rescue_events('-1 min')",
        "select agent.resume_kind($first)"),
}  # fmt: skip
WAITING: dict[str, Step] = {
    "paused": calling("select agent.pause_kind($first)", "select agent.resume_kind($first)"),
    "all paused": calling(*(f"select agent.{what}_kind('{kind}')" for what in ("pause", "resume") for kind in KINDS)),
    "a worker left": calling(
        "select agent.announce_worker('w1', '{plain,other,limited}', '1')",
        "select agent.announce_worker('w1', array_remove('{plain,other,limited}'::text[], $first), '1')",
        "update agent.kind set handled_at = null",
        "select agent.free_groups()",
        "select agent.announce_worker('w1', '{plain,other,limited}', '1')",
        "delete from agent.worker",
    ),
    "limited and not": calling(
        "select agent.set_limit($first, 1, null, null, 'kind')", "select agent.reset_limit($first)"
    ),
}  # fmt: skip
ORDERS = [
    pytest.param(kinds, marks=[] if len(set(kinds)) == 3 else pytest.mark.slow, id="-".join(kinds))
    for kinds in itertools.product(KINDS, repeat=3)
]


async def runs(queue: Connection) -> list[int]:
    """Claim and complete until nothing is left, as a worker does. Return the ids in the order in which they ran."""
    ran: list[int] = []
    for _ in range(12):
        rows = await do.claim(queue, *KINDS)
        ran += [row["id"] for row in rows]
        await do.settled(do.complete, queue, *map(pair, rows))
        if not await queue.fetchval("select count(*) from agent.event"):
            return ran
        await do.advance(queue, timedelta(seconds=5))
    pytest.fail(f"not all ran: {ran}")


async def stored(queue: Connection, kinds: tuple[str, ...]) -> list[int]:
    await queue.execute(
        "select agent.declare_limits('w1', '{limited}', '{\"limited\": {\"concurrency\": 9}}')"
    )
    ids = []
    for nth, kind in enumerate(kinds):
        ids.append(await do.enqueue(queue, kind, group_key=GROUP))
        await queue.execute("update agent.event set event_ts = event_ts - make_interval(mins => $2) where id = $1",
            ids[-1], 10 - nth)  # fmt: skip
    return ids


@pytest.mark.parametrize("kinds", ORDERS)
@pytest.mark.parametrize("change", WAITING)
async def test_a_change_of_waiting_keeps_order(
    queue: Connection, change: str, kinds: tuple[str, ...]
) -> None:
    ids = await stored(queue, kinds)
    rows = await queue.fetch("select id, kind from agent.event order by id")
    await WAITING[change](queue, list(rows))
    assert await runs(queue) == ids


@pytest.mark.parametrize("kinds", ORDERS)
@pytest.mark.parametrize("change", CLAIMED)
async def test_the_end_of_a_claim_keeps_order(queue: Connection, change: str, kinds: tuple[str, ...]) -> None:
    ids = await stored(queue, kinds)
    rows = await do.claim(queue, *KINDS, lease=2 * MINUTE)
    await CLAIMED[change](queue, sorted(rows, key=lambda row: row["id"]))
    assert await runs(queue) == ids
