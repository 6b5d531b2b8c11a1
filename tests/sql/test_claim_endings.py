"""Every way in which a claim ends, with every flag of an event: nothing stays for good, and its thread goes on."""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from tests.sql import queue_steps as do
from tests.sql.queue_steps import HOUR, MINUTE, Row, pair

GROUP = "T:C:1"
KINDS = ("job", "job@2", "other", "then", "free")
Step = Callable[[Connection, list[Row]], Awaitable[object]]
WAITS = '{"waits": [{"sort": "sleep", "name": "s", "nth": 1, "seconds": 60}], "blocking": %s}'


def settling(outcome: str, argument: str | None = None) -> Step:
    """Settle the claim of the first event alone."""

    async def settle(queue: Connection, rows: list[Row]) -> None:
        await do.settle(queue, [pair(rows[0])], outcome, [argument])

    return settle


def coalescing(outcome: str, argument: str = "null") -> Step:
    """Settle the claim of the first event with its followers."""

    async def settle(queue: Connection, rows: list[Row]) -> None:
        given = {
            "outcome": outcome,
            "argument": json.loads(argument),
            "followers": [pair(r) for r in rows[1:]],
        }
        await do.settle(queue, [pair(rows[0])], "coalesce", [json.dumps(given)])

    return settle


def calling(statement: str, after: timedelta = timedelta()) -> Step:
    """Call a function with the first event's id, perhaps after its lease."""

    async def call(queue: Connection, rows: list[Row]) -> None:
        await do.advance(queue, after)
        await queue.fetch(statement.replace("$1", str(rows[0]["id"])))

    return call


def marking(statement: str, first: int = 0, last: int = 3) -> Step:
    """Change some of the events that are claimed."""

    async def mark(queue: Connection, rows: list[Row]) -> None:
        for row in rows[first:last]:
            await queue.execute(statement.replace("$1", str(row["id"])))

    return mark


FAILED = json.dumps({"error": {}, "retry_in": 60, "final": False, "max_attempts": 3})
FINAL = json.dumps({"error": {}, "final": True, "max_attempts": 3})
CHILD = '{"children": [{"kind": "other"}], "continuation": {"kind": "then"}}'
WAYS: dict[str, Step] = {
    "complete": settling("complete"),
    "retry": settling("fail", FAILED),
    "fail": settling("fail", FINAL),
    "release": settling("release"),
    "snooze": settling("snooze", '{"pause": 60}'),
    "debounce": settling("snooze", '{"pause": 60, "blocking": true, "begun": false}'),
    "another version": settling("snooze", '{"pause": 0, "blocking": true, "version": "2"}'),
    "await": settling("await", '{"until": "2100-01-01T00:00:00Z"}'),
    "suspend": settling("suspend", WAITS % "false"),
    "suspend, blocking": settling("suspend", WAITS % "true"),
    "fan out": settling("fan_out", CHILD),
    "continue anew": settling("fan_out", '{"anew": true, "continuation": {"payload": {}}}'),
    "run completes": coalescing("complete"),
    "run fails": coalescing("fail", FINAL),
    "run suspends": coalescing("suspend", WAITS % "false"),
    "run is put back": coalescing("release"),
    "run is snoozed": coalescing("snooze", '{"pause": 60}'),
    "run retries": coalescing("fail", FAILED),
    "run awaits": coalescing("await", '{"until": "2100-01-01T00:00:00Z"}'),
    "lapse": calling("select 1", HOUR),
    "rescue": calling("select agent.rescue_events('-1 min')"),
    "delete": calling("select agent.delete_event($1)"),
    "delete by hand": calling("delete from agent.event where id = $1"),
    "cancel": calling("select * from agent.cancel_jobs(array[$1::int8])"),
    "cancel, lapsed": calling("select * from agent.cancel_jobs(array[$1::int8])", HOUR),
    "expire, lapsed": calling("select * from agent.expire_jobs(array[$1::int8], 'why')", HOUR),
    "reschedule, lapsed": calling("select agent.reschedule_event('first', agent.clock() + '1 min')", HOUR),
    "unknown to its worker": calling("select agent.release_unknown('w1', '{}', '{}')"),
}
CANCEL = "select * from agent.cancel_jobs(array[$1::int8])"
UNDO = """insert into agent.step (event_id, name, nth, sort, event_ts, attempt, started_at)
    select id, 'u', 1, 'undo', event_ts, 1, agent.clock() from agent.event where id = $1"""
CHILDREN = """update agent.event set waits_for = waits_for + 1, fails_with_children = true where kind = 'then';
    update agent.event set continuation_id = (select id from agent.event where kind = 'then') where id = $1"""
FLAGS: dict[str, Step] = {
    "none": marking("select 1"),
    "cancelled": marking(CANCEL),
    "first cancelled": marking(CANCEL, 0, 1),
    "others cancelled": marking(CANCEL, 1),
    "undos": marking(UNDO),
    "undos, cancelled": marking(f"{UNDO}; {CANCEL}"),
    "last attempt": marking("update agent.event set attempts = 3 where id = $1"),
    "past its deadline": marking("update agent.event set deadline = agent.clock() where id = $1"),
    "paused": marking("select agent.pause_kind('job')", 0, 1),
    "paused, cancelled": marking(f"select agent.pause_kind('job'); {CANCEL}"),
    "limited": marking("select agent.set_limit('job', 1, null, null, 'kind')", 0, 1),
    "limited, cancelled": marking(f"select agent.set_limit('job', 1, null, null, 'kind'); {CANCEL}"),
    "children": marking(CHILDREN),
    "children, cancelled": marking(f"{CHILDREN}; {CANCEL}"),
}
CELLS = [
    # Everyday, the flag that asks for an end; else too many.
    pytest.param(way, flag, marks=[] if flag == "cancelled" else pytest.mark.slow, id=f"{way}: {flag}")
    for way in WAYS
    for flag in FLAGS
]


async def goes_on(queue: Connection) -> None:
    """Do what workers, remote agents and operators do, until nothing is live. Nothing expires by age."""
    await queue.execute(
        "select agent.resume_kind('job'), agent.pause_kind('free'), agent.resume_kind('free')"
    )
    for _ in range(12):
        await queue.fetch(
            "select agent.answer_event(id, '1') from agent.event where vt = 'infinity' and coalesce(waits_for, 0) = 0"
        )
        for _ in range(4):
            rows = await do.claim(queue, *KINDS)
            await do.complete(queue, *map(pair, rows))
        await queue.execute("select agent.sweep_events(3, '100 years', null, false)")
        if not await queue.fetchval("select count(*) from agent.event"):
            return
        await do.advance(queue, 10 * MINUTE)
    left = await queue.fetch("select * from agent.event")
    pytest.fail(f"these stay for good: {left}")


@pytest.mark.parametrize(("way", "flag"), CELLS)
async def test_no_claim_ends_in_a_state_that_nothing_leaves(queue: Connection, way: str, flag: str) -> None:
    parent = await do.enqueue(queue, "other")
    (row,) = await do.claim(queue, "other")
    assert await do.continue_with(queue, pair(row), [Job("other")], Continuation("then")) == "done", parent
    for key in ("first", "second", "third"):
        await do.enqueue(queue, group_key=GROUP, item_key=key)
    rows = sorted(await do.claim(queue), key=lambda row: row["id"])
    await do.enqueue(queue, group_key=GROUP)
    await FLAGS[flag](queue, rows)
    await WAYS[way](queue, rows)
    await goes_on(queue)
