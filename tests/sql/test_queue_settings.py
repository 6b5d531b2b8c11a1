"""On a queue that several teams share, each team's settings apply to its own events only."""

import inspect
import re
from datetime import timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from surelane_operator.changes import Changes
from surelane_service.engine import DEAD_FOR, DEFAULT_MAX_ATTEMPTS, Engine
from tests.sql import queue_steps as do
from tests.sql.queue_steps import HOUR, TEN_MINUTES, pair

CALLS = {
    "insert_event": 'select agent.insert_event(\'{{"type": "fresh", "event_id": "Ev{0}"}}\')',
    "insert_events": 'select agent.insert_events(array[jsonb \'{{"type": "fresh", "event_id": "Ev{0}"}}\'])',
    "enqueue": "select agent.enqueue('slack.fresh', _item_key => 'job{0}')",
    "enqueue_jobs": """select agent.enqueue_jobs('[{{"kind": "slack.fresh", "item_key": "many{0}"}}]')""",
}


async def announce(queue: Connection, name: str, kinds: list[str], attempts: int | None) -> None:
    await Engine(queue).announce_worker(name, kinds, "0.1.0", None, attempts)


async def lapses(queue: Connection, kind: str, times: int, **named: Any) -> None:
    """Claim the kind's event and let the claim lapse, so many times."""
    for _ in range(times):
        assert len(await do.claim(queue, kind, **named)) == 1
        await do.advance(queue, TEN_MINUTES)


async def test_another_teams_sweep_leaves_an_event_its_attempts(queue: Connection) -> None:
    """One team's worker announced itself; the other team calls the documented functions itself."""
    announced, plain = await do.enqueue(queue, "patient"), await do.enqueue(queue, "plain")
    await announce(queue, "impatient", ["quick"], 3)
    await announce(queue, "patient", ["patient"], 10)
    for number in range(4):
        (row,) = await do.claim(queue, "patient", max_attempts=10)
        assert (row["attempts"], row["max_attempts"]) == (number + 1, 10)
        single = await do.claim_single(queue, 10)
        assert single["id"] == plain
        await do.advance(queue, TEN_MINUTES)
    assert await Engine(queue).sweep_events(kinds=["quick"]) == 0
    assert await do.live(queue, announced) is not None
    assert await do.live(queue, plain) is not None
    assert await do.sweep(queue) == 1, "the caller's maximum applies if neither event nor kind has one"
    assert await do.ending(queue, plain) == ("expired", "attempts_exhausted")
    await lapses(queue, "patient", 6)
    assert await Engine(queue).sweep_events(kinds=["quick"]) == 1
    assert await do.ending(queue, announced) == ("expired", "attempts_exhausted")


async def test_every_step_judges_by_the_kinds_maximum_also_members_of_a_group(queue: Connection) -> None:
    """Claims, peeks, failures, requeues and the operator's view use it, with any setting of the caller."""
    await announce(queue, "once", ["once"], 1)
    await announce(queue, "often", ["often"], 5)
    once, often, own = [await do.enqueue(queue, kind) for kind in ("once", "often", "often")]
    await queue.execute("update agent.event set max_attempts = 2 where id = $1", own)
    await lapses(queue, "once", 1)
    assert await do.claim(queue, "once", max_attempts=9) == []
    assert await do.claim_one(queue, 1) is not None, "of kind often, which may be tried five times"
    await do.advance(queue, TEN_MINUTES)
    peek = await Engine(queue).peek_events(["once", "often"], HOUR, max_attempts=9)
    assert {nth % 2 for nth, vt in enumerate(peek.vts) if vt is not None} == {1}
    operations = Changes(queue)
    why = await operations.why(once)
    assert why == ("exhausted", "1 of 1 attempts; the next sweep expires it")
    while rows := await do.claim(queue, "often", max_attempts=1):
        assert await do.fail(queue, *map(pair, rows), max_attempts=1) == ["done"] * len(rows)
    for identity, attempts in ((often, 5), (own, 2)):
        assert await do.ending(queue, identity) == ("failed", "attempts_exhausted")
        assert (await do.history_of(queue, identity))["attempts"] == attempts
    await operations.rerun([often])
    await lapses(queue, "often", 5)
    assert await Engine(queue).sweep_events() == 2
    assert await do.ending(queue, often) == await do.ending(queue, once) == ("expired", "attempts_exhausted")
    for kind in ("often", "once", "often"):
        await do.enqueue(queue, kind, group_key="g")
    await queue.execute("update agent.event set attempts = 1")  # as if each had failed once
    rows = await do.claim(queue, "once", "often", max_attempts=3)
    assert [(row["kind"], row["max_attempts"]) for row in rows] == [("often", 5)] * 2


async def test_the_setting_of_the_worker_that_started_last_holds(queue: Connection) -> None:
    """While workers change from one setting to another, announcements of the old ones change nothing."""
    kinds = ["mail", "note"]
    maximum = "select array_agg(max_attempts order by kind) from agent.kind where kind = any($1)"
    await announce(queue, "old", kinds, 3)
    await do.advance(queue, timedelta(seconds=1))
    await announce(queue, "new", ["mail"], 10)
    await announce(queue, "old", kinds, 3)
    await announce(queue, "of the last release", kinds, None)
    assert await queue.fetchval(maximum, kinds) == [10, 3]
    await queue.execute("select agent.retire_worker('new'), agent.retire_worker('old')")
    assert await queue.fetchval(maximum, kinds) == [10, 3], "a kind keeps it while no worker runs"


async def test_an_announcement_waits_for_no_open_transaction(queue: Connection, other: Connection) -> None:
    await do.enqueue(queue, "known")
    async with other.transaction():
        await other.execute("select agent.pause_kind('known'), agent.enqueue('fresh')")
        await queue.execute("set lock_timeout = '60s'")
        await announce(queue, "w", ["known", "fresh"], 7)
    await announce(queue, "w", ["known", "fresh"], 7)
    assert await queue.fetchval("select array_agg(max_attempts) from agent.kind") == [7, 7]


@pytest.mark.parametrize("statement", [*CALLS, "by hand", "paused"])
async def test_an_uncommitted_kind_blocks_none(queue: Connection, other: Connection, statement: str) -> None:
    transaction = other.transaction()
    await transaction.start()
    match statement:
        case "paused":
            await other.execute("select agent.pause_kind('slack.fresh')")
        case "by hand":
            await other.execute(
                'insert into agent.event (event_ts, event) values (now(), \'{"type": "fresh"}\')'
            )
        case _:
            await other.execute(CALLS[statement].format(1))
    await queue.execute("set lock_timeout = '60s'")
    for nth, call in enumerate(CALLS.values(), start=2):
        await queue.execute(call.format(nth))
    await transaction.rollback()
    assert await queue.fetchval("select count(*) from agent.kind") == 0
    await Engine(queue).sweep_events()
    assert await queue.fetchval("select array_agg(kind) from agent.kind") == ["slack.fresh"]
    assert await do.claim_one(queue) is not None


async def test_both_languages_have_the_same_constants(queue: Connection) -> None:
    assert await queue.fetchval("select agent.attempts_of('{unknown}', null)") == [DEFAULT_MAX_ATTEMPTS]
    defaults = (
        "select pg_get_function_arguments(oid) from pg_proc"
        " where pronamespace = 'agent'::regnamespace and proname = $1"
    )
    for function in ("claim_event", "delete_expired_events"):
        assert f"attempts integer DEFAULT {DEFAULT_MAX_ATTEMPTS}," in await queue.fetchval(defaults, function)
    default = re.search(r"DEFAULT '(.*)'::interval", await queue.fetchval(defaults, "rescue_events"))
    assert default is not None
    assert await queue.fetchval("select $1::text::interval", default[1]) == DEAD_FOR
    assert inspect.signature(Engine.rescue_events).parameters["dead_for"].default == DEAD_FOR
