"""In a group of several kinds, an event that no worker claims does not delay the others, and all run in order."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from surelane.calls import Connection
from surelane_operator.changes import Changes
from tests.sql import queue_steps as do
from tests.sql.queue_steps import HOUR, MINUTE, Row, envelope, pair

HANDLED, UNHANDLED = "slack.app_mention", "slack.message.channels"


async def announce(queue: Connection, *kinds: str, name: str = "w1") -> None:
    """Announce a worker with its kinds."""
    await queue.execute("select agent.announce_worker($1, $2, '0.1.0')", name, kinds)


async def handled(queue: Connection) -> list[int]:
    return [row["id"] for row in await do.claim(queue, HANDLED)]


async def add(queue: Connection, kind: str) -> int:
    return await do.enqueue(queue, kind, group_key="g")


async def test_what_nobody_handles_waits_behind_what_somebody_does(queue: Connection) -> None:
    """Slack sends both for a mention in a channel, and many bots handle the mention alone."""
    await announce(queue, HANDLED)
    thread = {"channel": "C1", "ts": "1.1"}
    await do.insert(queue, envelope("Ev1", type="message", channel_type="channel", **thread))
    mention = await do.insert(queue, envelope("Ev2", **thread))
    assert await handled(queue) == [mention]
    unhandled = await add(queue, UNHANDLED)
    first = await add(queue, HANDLED)
    await add(queue, UNHANDLED)
    second = await add(queue, HANDLED)
    rows = await do.claim(queue, HANDLED)
    assert [row["id"] for row in rows] == [first, second]
    third = await add(queue, HANDLED)
    assert await handled(queue) == []
    await do.complete(queue, *map(pair, rows))
    assert await handled(queue) == [third]
    await do.complete(queue, (third, 1))
    assert await do.heads(queue, "g") == [unhandled]
    fourth = await add(queue, HANDLED)
    assert await handled(queue) == [fourth]
    # While no worker runs, the kinds of the workers that ran last count.
    await queue.execute("delete from agent.event")
    await do.advance(queue, timedelta(hours=20))
    await add(queue, UNHANDLED)
    mention = await add(queue, HANDLED)
    assert await do.heads(queue, "g") == [mention]


async def test_a_kind_that_gets_a_worker_is_handed_over_in_order_again(queue: Connection) -> None:
    await announce(queue, HANDLED)
    unhandled = await add(queue, UNHANDLED)
    mention = await add(queue, HANDLED)
    await announce(queue, HANDLED, UNHANDLED, name="w2")
    assert [row["id"] for row in await do.claim(queue, HANDLED, UNHANDLED)] == [unhandled, mention]


async def test_a_claim_passes_over_no_member_that_another_worker_handles(queue: Connection) -> None:
    await announce(queue, HANDLED)
    await announce(queue, UNHANDLED, name="w2")
    first, second, _ = [await add(queue, kind) for kind in (HANDLED, UNHANDLED, HANDLED)]
    assert await handled(queue) == [first]
    await do.complete(queue, (first, 1))
    assert await do.heads(queue, "g") == [second]


@pytest.mark.parametrize("pause", [0 * MINUTE, HOUR], ids=["due", "not due yet"])
async def test_a_retry_leads_again_once_its_kind_has_a_worker(queue: Connection, pause: timedelta) -> None:
    await announce(queue, UNHANDLED)
    retry = await add(queue, UNHANDLED)
    await do.fail(queue, *map(pair, await do.claim(queue, UNHANDLED)), retry_in=pause)
    mention = await add(queue, HANDLED)
    await do.advance(queue, MINUTE * 3)
    await announce(queue, HANDLED, name="w2")
    await swept(queue)
    assert await do.heads(queue, "g") == [mention]
    await announce(queue, UNHANDLED)
    await swept(queue)
    assert await do.heads(queue, "g") == [retry]


async def test_a_worker_that_comes_frees_what_waited_behind_unhandled_heads(queue: Connection) -> None:
    await add(queue, UNHANDLED)
    mention = await add(queue, HANDLED)
    assert await handled(queue) == [], "no worker has announced its kinds yet"
    await announce(queue, HANDLED)
    assert await handled(queue) == [mention]


async def test_a_kind_whose_workers_are_gone_gives_way_within_a_sweep(queue: Connection) -> None:
    await announce(queue, HANDLED, UNHANDLED)
    await add(queue, UNHANDLED)
    mention = await add(queue, HANDLED)
    await do.advance(queue, MINUTE)
    await announce(queue, HANDLED, name="w2")
    assert await handled(queue) == [], "its worker was there a minute ago"
    await do.advance(queue, MINUTE * 2)
    await announce(queue, HANDLED, name="w2")
    await queue.execute("select agent.sweep_events(_by_age => false)")
    assert await handled(queue) == [mention]


async def swept(queue: Connection) -> None:
    await queue.execute("select agent.sweep_events(_by_age => false)")


async def test_while_a_kind_is_paused_its_groups_go_on_without_it(queue: Connection) -> None:
    parked, running, member = [await add(queue, kind) for kind in ("parked", HANDLED, "parked")]
    await queue.execute("select agent.pause_kind('parked')")
    rows = await do.claim(queue, "parked", HANDLED)
    assert [row["id"] for row in rows] == [running]
    await do.complete(queue, *map(pair, rows))
    assert await do.claim(queue, "parked", HANDLED) == []
    await do.advance(queue, timedelta(hours=2))
    expired = await add(queue, HANDLED)
    await queue.execute("update agent.event set vt = vt - interval '2 hours' where id = $1", expired)
    assert await do.sweep(queue) == 1
    later = await queue.fetchval("select agent.clock() + interval '1 hour'")
    head = await do.enqueue(queue, HANDLED, group_key="g", run_at=later)
    assert await do.heads(queue, "g") == [head]
    await queue.execute("select agent.resume_kind('parked')")
    assert [row["id"] for row in await do.claim(queue, "parked")] == [parked, member]


async def test_after_a_worker_came_back_nothing_visible_waits_behind_a_parked_head(queue: Connection) -> None:
    """While no worker handled its kind, the event that awaits an answer was the head."""
    await announce(queue, "asks")
    asking = await add(queue, "asks")
    await do.claim(queue, "asks")
    waiting = await add(queue, HANDLED)
    deadline = await queue.fetchval("select agent.clock() + interval '1 day'")
    assert await do.await_answer(queue, (asking, 1), deadline) == "done"
    assert await do.heads(queue, "g") == [asking]
    await announce(queue, HANDLED, name="w2")
    assert await handled(queue) == [waiting]


async def test_while_workers_are_replaced_groups_keep_their_order(queue: Connection) -> None:
    """The old worker retires seconds before the new one announces itself. No event may overtake meanwhile."""
    await announce(queue, HANDLED, UNHANDLED)
    first = await add(queue, UNHANDLED)
    await announce(queue, HANDLED, name="w2")
    await queue.execute("select agent.retire_worker('w1')")
    await do.advance(queue, timedelta(seconds=20))
    second = await add(queue, HANDLED)
    await swept(queue)
    assert await do.heads(queue, "g") == [first]
    assert await handled(queue) == []
    await announce(queue, HANDLED, UNHANDLED, name="w3")
    rows = await do.claim(queue, HANDLED, UNHANDLED)
    assert [row["id"] for row in rows] == [first, second]


async def test_a_kind_whose_workers_retired_gives_way_in_the_end(queue: Connection) -> None:
    await announce(queue, HANDLED, UNHANDLED)
    await add(queue, UNHANDLED)
    mention = await add(queue, HANDLED)
    await queue.execute("select agent.retire_worker('w1')")
    await do.advance(queue, MINUTE * 4)
    await announce(queue, HANDLED, name="w2")
    assert await handled(queue) == [mention]


async def test_a_retiring_worker_waits_for_no_pause_under_way(queue: Connection, other: Connection) -> None:
    await announce(queue, HANDLED)
    await add(queue, HANDLED)
    async with asyncio.timeout(60), other.transaction():
        await other.execute("select agent.pause_kind($1)", HANDLED)
        await queue.execute("select agent.retire_worker('w1')")


async def test_a_pause_frees_all_groups_in_bounded_steps(queue: Connection) -> None:
    """The first 1,000 in its own transaction, the others by the operator's client."""
    await queue.execute(
        "select agent.enqueue(kind, _group_key => 'g' || g)"
        " from generate_series(1, 1100) as g cross join (values ('parked'), ('job')) as k (kind) order by kind desc"
    )
    free = "select count(*) from agent.event where head and kind = 'job'"
    assert await queue.fetchval(free) == 0
    await queue.execute("select agent.pause_kind('parked')")
    assert await queue.fetchval(free) == 1000
    step = await queue.fetchrow("select next, freed from agent.free_groups('', 60)")
    assert step is not None
    assert step["freed"] == 60
    await Changes(queue).pause("parked")
    assert await queue.fetchval(free) == 1100


THREAD = "T:C:1"
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
        ids.append(await do.enqueue(queue, kind, group_key=THREAD))
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
