"""Limits of kinds: how many events run at once or begin in a period, counted by key."""

import json
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_service.engine import Engine
from tests.sql import queue_steps as do
from tests.sql.conftest import Connect
from tests.sql.queue_steps import MINUTE, TEN_MINUTES, envelope, pair

SECOND = timedelta(seconds=1)


async def declare(queue: Connection, kind: str = "job", **limit: Any) -> None:
    await queue.fetchval(
        "select agent.declare_limits('w', array[$1], $2)", kind, json.dumps({kind: limit} if limit else {})
    )


async def keyed(queue: Connection, *keys: str | None, **fields: Any) -> list[int]:
    """Enqueue a batch of jobs that bring these keys; return their ids."""
    jobs = [{"kind": "job", "limit_key": key, **fields} for key in keys]
    rows = await queue.fetch("select id from agent.enqueue_jobs($1) order by ordinal", json.dumps(jobs))
    return [row["id"] for row in rows]


async def why(queue: Connection, identity: int) -> tuple[str, str]:
    row = await do.only_row(queue, "select * from agent.why_waiting($1)", identity)
    return row["reason"], row["detail"]


async def watch(queue: Connection, kind: str = "job") -> None:
    """Announce a worker, without which an event waits for one."""
    await queue.execute("select agent.announce_worker('w', array[$1], '1', null, 3)", kind)


async def test_so_many_run_at_once(queue: Connection) -> None:
    await watch(queue)
    await declare(queue, concurrency=2)
    ids = [await do.enqueue(queue) for _ in range(5)]
    first = await do.claim(queue)
    assert [row["id"] for row in first] == ids[:2]
    assert await do.claim(queue) == []
    reason, detail = await why(queue, ids[2])
    assert (reason, detail[:35]) == ("limited", "2 of 2 run at once for kind:; the n")
    waiting = await do.event_of(queue, ids[2])
    assert (waiting["attempts"], waiting["claimed_by"]) == (0, None)
    await do.complete(queue, pair(first[0]))
    assert [row["id"] for row in await do.claim(queue)] == [ids[2]]
    await do.complete(queue, pair(first[1]))
    assert [row["id"] for row in await do.claim(queue, limit=1)] == [ids[3]]
    assert await do.claim(queue) == []


async def test_so_many_begin_in_any_period(queue: Connection) -> None:
    await watch(queue)
    await declare(queue, rate=3, period=60)
    ids = [await do.enqueue(queue) for _ in range(6)]
    begun = [await do.claim(queue, limit=2)]
    await do.advance(queue, 10 * SECOND)
    begun.append(await do.claim(queue))
    assert [[row["id"] for row in rows] for rows in begun] == [ids[:2], ids[2:3]]
    for row in begun[0]:
        await do.complete(queue, pair(row))
    assert await do.claim(queue) == []
    assert (await why(queue, ids[3]))[0] == "limited"
    await do.advance(queue, 49 * SECOND)
    assert await do.claim(queue) == []
    await do.advance(queue, 1.5 * SECOND)
    assert [row["id"] for row in await do.claim(queue)] == ids[3:5]
    assert await do.claim(queue) == []
    await do.advance(queue, 10 * SECOND)
    assert [row["id"] for row in await do.claim(queue)] == ids[5:]


async def test_a_large_rate_is_counted_by_hundredths_of_its_period(queue: Connection) -> None:
    """Its state stays small, and no period has more events than the limit."""
    await declare(queue, rate=1000, period=1000)
    await queue.execute("select agent.enqueue('job') from generate_series(1, 3000)")
    begun: list[tuple[int, int]] = []
    for step in range(60):
        begun.append((step * 25, len(await do.claim(queue, limit=90))))
        await do.advance(queue, 25 * SECOND)
    assert sum(count for at, count in begun if at < 1000) == 1000
    assert 1400 <= sum(count for _, count in begun) <= 2000
    assert await queue.fetchval("select max(cardinality(starts)) from agent.limit_state") <= 101


@pytest.mark.parametrize(
    ("per", "members", "same"),
    [
        ("workspace", {"team_id": "T1"}, {"team_id": "T1", "channel": "C2"}),
        (
            "channel",
            {"team_id": "T1", "channel": "C1"},
            {"team_id": "T1", "channel": {"id": "C1"}, "user": "U2"},
        ),
        ("user", {"team_id": "T1", "user": "U1"}, {"team": {"id": "T1"}, "user_id": "U1"}),
    ],
)
async def test_each_key_has_its_own_limit(queue: Connection, per: str, members: Any, same: Any) -> None:
    await declare(queue, per=per, concurrency=1)
    first = await do.enqueue(queue, payload=json.dumps(members))
    await do.enqueue(queue, payload=json.dumps(same))
    other = await do.enqueue(queue, payload=json.dumps({**members, "team_id": "T2"}))
    keyless = await do.enqueue(queue)
    assert {row["id"] for row in await do.claim(queue)} == {first, other, keyless}


async def test_a_job_may_bring_its_key_and_hundreds_of_blocked_keys_hide_none(queue: Connection) -> None:
    await declare(queue, per="given", concurrency=1)
    ids = await keyed(queue, "a", "a", "b", None)
    claimed = await do.claim(queue)
    assert [row["id"] for row in claimed] == [ids[0], ids[2], ids[3]]
    # It keeps the key in history.
    await do.complete(queue, *[pair(row) for row in claimed])
    (second,) = await do.claim(queue)
    await queue.execute("select agent.rerun_events(array[$1::int8])", ids[0])
    assert await do.claim(queue) == []
    await do.complete(queue, pair(second))
    assert [row["id"] for row in await do.claim(queue)] == [ids[0]]
    await queue.execute(
        "select agent.enqueue_jobs(jsonb_agg(jsonb_build_object('kind', 'job', 'limit_key', nth % 500)))"
        " from generate_series(1, 1000) as nth"
    )
    running = [row for _ in range(9) for row in await do.claim(queue)]
    assert len(running) == 500
    assert await do.claim(queue) == []
    await do.complete(queue, pair(running[333]))
    (row,) = await do.claim(queue)
    assert row["id"] == running[333]["id"] + 500


async def test_priority_counts_within_a_key_and_every_end_of_a_claim_frees_a_slot(queue: Connection) -> None:
    await declare(queue, concurrency=1)
    ids = {priority: await do.enqueue(queue, priority=priority) for priority in (3, 2, 1, 0)}
    for _ in range(4):
        (row,) = await do.claim(queue)
        await do.complete(queue, pair(row))
    found = await queue.fetch("select id, agent.priority_of(lane) as priority from agent.event_hist")
    assert {row["priority"]: row["id"] for row in found} == ids
    for _ in range(2):
        await do.enqueue(queue)
    (row,) = await do.claim(queue)
    await do.fail(queue, pair(row), retry_in=MINUTE)
    (row,) = await do.claim(queue)
    await do.snooze(queue, pair(row), MINUTE)
    assert await do.claim(queue) == []
    await do.advance(queue, 1.1 * MINUTE)
    (row,) = await do.claim(queue)
    assert await do.claim(queue) == []
    await do.release(queue, pair(row))
    (other,) = await do.claim(queue)
    assert other["id"] != row["id"]
    await queue.execute("select agent.delete_event($1)", other["id"])
    (again,) = await do.claim(queue)
    assert (again["id"], again["attempts"]) == (row["id"], row["attempts"])
    await queue.execute("select agent.end_claims(array[$1::int8], '{}')", row["id"])  # a rescue
    (rescued,) = await do.claim(queue)
    assert (rescued["id"], rescued["attempts"]) == (row["id"], row["attempts"] + 1)
    await do.enqueue(queue)
    assert await do.claim(queue) == []


async def test_a_lapsed_run_counts_until_it_lapses_and_is_not_renewed_afterwards(queue: Connection) -> None:
    await declare(queue, concurrency=1)
    ids = [await do.enqueue(queue) for _ in range(2)]
    (lapsed,) = await do.claim(queue, lease=MINUTE)
    assert await do.extend(queue, pair(lapsed), lease=MINUTE) == ["done"]
    await do.advance(queue, 0.9 * MINUTE)
    assert await do.claim(queue) == []
    await do.advance(queue, 0.2 * MINUTE)
    (row,) = await do.claim(queue, lease=MINUTE)
    assert row["id"] == ids[1]
    assert await do.claim(queue) == []
    # A heartbeat that a hanging database executes late.
    assert await do.extend(queue, pair(lapsed), pair(row), lease=MINUTE) == ["busy", "done"]
    running = "select count(*) from agent.event where claimed_by is not null and vt > agent.clock()"
    assert await queue.fetchval(running) == 1
    await do.complete(queue, pair(row))
    (row,) = await do.claim(queue)
    assert (row["id"], row["attempts"]) == (ids[0], 2)
    await do.complete(queue, pair(row))
    # An older event that comes while no slot is free is claimed first.
    await do.enqueue(queue)
    await do.enqueue(queue)
    (row,) = await do.claim(queue)
    assert await do.claim(queue) == []
    older = await do.enqueue(queue)
    await queue.execute("update agent.event set vt = vt - interval '1 hour' where id = $1", older)
    await queue.execute("select agent.note_parked(array[$1::int8], false)", older)
    assert await do.claim(queue) == []
    await do.complete(queue, pair(row))
    assert [row["id"] for row in await do.claim(queue)] == [older]


async def test_a_group_is_one_run_for_a_handler_of_groups_alone(queue: Connection) -> None:
    ids = [await do.insert(queue, envelope(f"Ev{nth}", thread_ts="1", channel="C1")) for nth in range(4)]
    await declare(queue, "slack.app_mention", rate=2, period=60)
    begun = []
    for _ in range(3):
        rows = await do.claim(queue, "slack.app_mention")
        begun += [row["id"] for row in rows]
        await do.complete(queue, *[pair(row) for row in rows])
    assert begun == ids[:2]
    await do.enqueue(queue, "other", group_key="o")
    await do.enqueue(queue, "slack.app_mention", group_key="o")
    kinds = [row["kind"] for row in await do.claim(queue, "other", "slack.app_mention")]
    assert kinds == ["other"], "a member of a limited kind does not come along"
    await declare(queue, rate=2, period=60, grouped=True)
    for group in "gggh":
        await do.enqueue(queue, group_key=group)
    late = await do.enqueue(queue, group_key="i")
    assert len(await do.claim(queue)) == 4
    assert (await do.event_of(queue, late))["claimed_by"] is None


async def test_a_kind_that_becomes_limited_parks_what_waits(queue: Connection) -> None:
    await queue.execute(
        "select agent.enqueue('job', '{}', _priority => nth % 4) from generate_series(1, 450) as nth"
    )
    await declare(queue, concurrency=5)
    assert len(await do.claim(queue)) == 5
    for _ in range(3):
        assert await do.claim(queue) == []
    assert await queue.fetchval("select count(*) from agent.event where lane >= 0") == 0
    await declare(queue)
    assert len(await do.claim(queue, limit=1000)) == 445
    # New ones are not parked; the sweep forgets the limit.
    await do.enqueue(queue)
    assert len(await do.claim(queue)) == 1
    await queue.execute("delete from agent.event")
    await do.sweep(queue)
    assert await queue.fetchval("select count(*) from agent.kind_limit") == 0


async def test_what_limited_claims_passed_over_is_found(queue: Connection, other: Connection) -> None:
    async with other.transaction():
        identity = await do.enqueue(other)
        await declare(queue, concurrency=5)
        assert await do.claim(queue) == []
        assert await do.claim(queue) == []
    await do.sweep(queue)
    assert [row["id"] for row in await do.claim(queue)] == [identity]
    await do.enqueue(queue)
    await queue.execute("delete from agent.limit_note")
    assert await do.claim(queue) == []
    await do.sweep(queue)
    assert len(await do.claim(queue)) == 1
    # The settle began before an event waited, so it left no note. It is found soon, without a sweep.
    await declare(queue, "mail", concurrency=1)
    await do.enqueue(queue, "mail")
    (running,) = await do.claim(queue, "mail")
    async with other.transaction():
        assert await do.complete(other, pair(running)) == ["done"]
        waiting = await do.enqueue(queue, "mail")
        assert await do.claim(queue, "mail") == []
    await do.advance(queue, 0.2 * SECOND)
    assert [row["id"] for row in await do.claim(queue, "mail")] == [waiting]


async def test_a_limit_that_counts_by_another_rule_gives_new_keys(queue: Connection) -> None:
    await declare(queue, concurrency=1)
    for team in ("T1", "T2", "T2"):
        await do.enqueue(queue, payload=json.dumps({"team_id": team}))
    (row,) = await do.claim(queue)
    await declare(queue, per="workspace", concurrency=1)
    await do.claim(queue)
    await do.complete(queue, pair(row))
    await do.claim(queue)
    keys = await queue.fetch(
        "select changes #>> '{0,limit_key}' as limit_key from agent.event where claimed_by is not null"
    )
    assert [row["limit_key"] for row in keys] == ["workspace:T2"]


async def test_operators_change_a_limit_while_events_wait(queue: Connection) -> None:
    await declare(queue, concurrency=1)
    await queue.execute("select agent.enqueue('job') from generate_series(1, 20)")
    assert len(await do.claim(queue)) == 1
    await queue.execute("select agent.set_limit('job', 4, null, null, null)")
    assert len(await do.claim(queue)) == 3
    await declare(queue, concurrency=2)
    await queue.execute("select agent.set_limit('job', 0, 7, '1m', null)")
    assert len(await do.claim(queue)) == 7
    (row,) = await queue.fetch("select * from agent.list_limits()")
    limits = [row[name] for name in ("concurrency", "rate", "period", "declared_concurrency")]
    assert limits == [None, 7, MINUTE, 2]
    assert await queue.fetchval("select agent.reset_limit('job')")
    assert not await queue.fetchval("select agent.reset_limit('job')")
    assert await do.claim(queue) == []
    await queue.execute("select agent.set_limit('job', 0, 0, null, null)")
    assert len(await do.claim(queue)) == 9


async def test_a_worker_that_started_later_declares(queue: Connection) -> None:
    """The first declares although a later one is listed that has not: without its limit, it would claim too much."""
    for name in ("old", "new"):
        await queue.execute("select agent.introduce_worker($1, '1', '{job}', '{}', 1, 1)", name)
    await queue.execute("update agent.worker set started_at = started_at - interval '1 s' where name = 'old'")
    declare = "select agent.declare_limits($1, '{job}', $2)"
    assert await queue.fetchval(declare, "old", '{"job": {"concurrency": 1}}') == ["job"]
    assert await queue.fetchval(declare, "old", '{"job": {"concurrency": 3}}') == []
    assert await queue.fetchval(declare, "new", '{"job": {"concurrency": 2}}') == ["job"]
    assert await queue.fetchval(declare, "old", '{"job": {"concurrency": 1}}') == []
    assert await queue.fetchval("select concurrency from agent.kind_limit") == 2


async def test_a_peek_tells_when_a_rate_allows_the_next(queue: Connection) -> None:
    await declare(queue, rate=1, period=60)
    for _ in range(2):
        await do.enqueue(queue)
    (row,) = await do.claim(queue)
    assert await do.claim(queue) == []
    peek = await Engine(queue).peek_events(["job"], timedelta(hours=1))
    assert peek.vts[0] is not None
    begun = row["vt"] - TEN_MINUTES
    assert timedelta(seconds=-1) < peek.vts[0] - begun - timedelta(minutes=1) < timedelta(seconds=1)


async def test_a_single_claim_keeps_to_the_limit_and_passes_a_limited_backlog(queue: Connection) -> None:
    await declare(queue, concurrency=1)
    await queue.execute("select agent.enqueue('job') from generate_series(1, 50)")
    await do.enqueue(queue, "other")
    claimed = [row["kind"] for _ in range(4) if (row := await do.claim_one(queue)) is not None]
    assert sorted(claimed) == ["job", "other"]
    other = await do.enqueue(queue, "other")
    assert [row["id"] for row in await do.claim(queue, "other", "job", limit=1)] == [other]


async def test_parked_events_are_paused_counted_listed_cancelled_and_expired(queue: Connection) -> None:
    await declare(queue, concurrency=1)
    ids = [await do.enqueue(queue, item_key=f"k{nth}") for nth in range(4)]
    await queue.execute("select agent.pause_kind('job')")
    assert await do.claim(queue) == []
    assert await do.claim_one(queue) is None
    await queue.execute("select agent.resume_kind('job')")
    assert [row["id"] for row in await do.claim(queue)] == ids[:1]
    counts = "select pending, running from agent.queue_stats() where kind = 'job'"
    assert tuple(await do.only_row(queue, counts)) == (3, 1)
    assert await queue.fetchval("select pending from agent.count_heads('job', agent.clock())") == 3
    assert await queue.fetchval("select count(*) from agent.list_jobs(array['pending'])") == 3
    assert await queue.fetchval("select agent.cancel_event('k3')") == "cancelled"
    moved = "select agent.reschedule_event('k2', agent.clock() + interval '1h')"
    assert await queue.fetchval(moved) == "rescheduled"
    await do.advance(queue, timedelta(minutes=61))
    await do.sweep(queue)
    assert await queue.fetchval("select array_agg(id) from agent.event") == [ids[0], ids[2]]


async def test_foreign_transactions_stop_no_claim(queue: Connection, connect: Connect) -> None:
    """One has stored events of a limited kind, one has claimed of a key, one is changing a limit."""
    await declare(queue, per="given", concurrency=3)
    await keyed(queue, "a")
    storing, claiming, changing = [await connect() for _ in range(3)]
    for session in (storing, claiming, changing):
        await session.execute("begin")
    try:
        await do.enqueue(storing)
        assert len(await do.claim(claiming)) == 1
        await changing.execute("select agent.set_limit('job', 1, null, null, null)")
        for key in "ab":
            await keyed(queue, key)
        await queue.execute("set statement_timeout = '60s'")
        (row,) = await do.claim(queue)
        limit_key = "select changes #>> '{0,limit_key}' from agent.event where id = $1"
        assert await queue.fetchval(limit_key, row["id"]) == "given:b"
        assert await do.complete(queue, pair(row)) == ["done"]
        await do.sweep(queue)
        with pytest.raises(asyncpg.LockNotAvailableError):  # the worker says so, and tries again
            await declare(queue, per="given", concurrency=5)
    finally:
        for session in (storing, claiming, changing):
            await session.execute("rollback")
    assert len(await do.claim(queue)) == 2


@pytest.mark.parametrize("rate", [2, 200])
async def test_a_clock_that_jumped_ahead_and_back_stops_no_rate(queue: Connection, rate: int) -> None:
    await declare(queue, rate=rate, period=10)
    for _ in range(2 * rate):
        await do.enqueue(queue)
    assert len(await do.claim(queue, limit=1000)) == rate
    ahead = "agent.clock() + interval '1 hour'"
    await queue.execute(
        f"update agent.limit_state set starts = array_fill({ahead}, array[cardinality(starts)])"
    )
    await queue.execute("select agent.note_keys('job', 10)")
    assert len(await do.claim(queue, limit=1000)) == rate


@pytest.mark.parametrize(
    ("per", "one", "other"),
    [
        ("given", {"limit_key": "a"}, {"limit_key": "b"}),
        ("workspace", {"payload": {"team_id": "T1"}}, {"payload": {"team_id": "T2"}}),
    ],
)
async def test_a_replaced_job_counts_by_a_new_key(queue: Connection, per: str, one: Any, other: Any) -> None:
    async def store(**job: Any) -> None:
        jobs = json.dumps([{"kind": "job", **job}])
        await queue.execute("select agent.enqueue_jobs($1, 'replace')", jobs)

    await declare(queue, per=per, concurrency=1)
    await store(**other)
    (running,) = await do.claim(queue)
    await store(dedupe_key="x", **one)
    await store(dedupe_key="x", **other)
    assert await do.claim(queue) == []
    await do.complete(queue, pair(running))
    assert len(await do.claim(queue)) == 1


async def test_a_transaction_and_a_step_that_parks_events_note_each_key_once(queue: Connection) -> None:
    """A claim may delete the note, also within the transaction: then the next event is noted anew."""
    await declare(queue, per="given", concurrency=1000)
    await queue.execute("delete from agent.limit_note")
    await keyed(queue, *(f"{nth % 3}" for nth in range(30)))
    assert await queue.fetchval("select count(*) from agent.limit_note") == 3
    async with queue.transaction():
        rows = await do.claim(queue)
        assert len(rows) == 30
        await do.enqueue(queue)
        assert len(await do.claim(queue)) == 1
    notes = await queue.fetch("select * from agent.limit_note")
    assert await do.complete(queue, *map(pair, rows)) == ["done"] * 30
    assert await queue.fetch("select * from agent.limit_note") == notes, "a settle far from it notes none"
    await queue.execute(
        "insert into agent.event (event_ts, vt, kind, event, head, lane) select now()"
        ", now() - nth * interval '1 second', 'job', jsonb_build_object('team_id', 'T' || nth % 3), true, 0"
        " from generate_series(1, 300) as nth order by random()"
    )
    await queue.execute("select agent.register_kinds(array['job'])")
    await declare(queue, per="workspace", concurrency=1000)
    await queue.execute("delete from agent.limit_note")
    assert await queue.fetchval("select agent.park_events('job', 1000)") == 300
    assert await queue.fetchval("select count(*) from agent.limit_note") == 3
    await queue.execute("select agent.note_keys('job', 10)")
    assert len(await do.claim(queue, limit=1000)) == 300
    # Events that are stored singly leave a note each. No claim may read all notes of a kind to sort them.
    async with queue.transaction():
        await queue.execute("set local enable_seqscan = off; set local enable_bitmapscan = off")
        plan = await queue.fetch(
            "explain (costs off) select kind, limit_key, due_at from agent.limit_note"
            " where kind = 'job' and due_at <= now() order by due_at limit 64"
        )
    limit, scan, *_ = [line.strip(" ->") for (line,) in plan]
    assert (limit, scan) == ("Limit", "Index Only Scan using limit_note_due on limit_note")
