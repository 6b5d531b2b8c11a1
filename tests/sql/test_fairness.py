"""Fairness: a workspace with a backlog of a kind does not hold up the others."""

from collections import Counter
from datetime import timedelta

from surelane.calls import Connection
from surelane_service.engine import Engine
from tests.sql.queue_steps import claim, enqueue, locked

FLOOD = """
insert into agent.event (event_ts, vt, kind, event, head, lane)
select now(), agent.clock() - interval '10 seconds' + n * interval '1 microsecond', 'job', payload, true
, agent.lane_for('job', 1::int2, null, payload)
from generate_series(1, $2) as n, jsonb_build_object('team_id', $1::text) as payload
"""
WORKSPACES = "select event ->> 'team_id' as workspace from agent.event where id = any($1)"
BANDS = (
    "select event ->> 'team_id' as workspace, array_agg(distinct agent.band_of(lane)) as bands"
    " from agent.event group by 1"
)


async def flood(queue: Connection, workspace: str, events: int = 600) -> None:
    """Gives a workspace many jobs that have waited for ten seconds."""
    await queue.execute(FLOOD, workspace, events)


async def single(queue: Connection, workspace: str, **named: str) -> int:
    return await enqueue(queue, payload=f'{{"team_id": "{workspace}"}}', **named)


async def share(queue: Connection, kind: str = "job") -> timedelta | None:
    """Calls the duty until it has nothing to do for now."""
    again: timedelta | None = timedelta()
    while again == timedelta():
        again = await queue.fetchval("select agent.share_kind($1)", kind)
    return again


async def bands(queue: Connection) -> dict[str, list[int]]:
    return {row["workspace"]: row["bands"] for row in await queue.fetch(BANDS)}


async def taken(queue: Connection, claims: int, limit: int = 1) -> Counter[str]:
    found: Counter[str] = Counter()
    for _ in range(claims):
        ids = [row["id"] for row in await claim(queue, limit=limit)]
        found.update(row["workspace"] for row in await queue.fetch(WORKSPACES, ids))
    return found


async def test_others_overtake_a_crowd(queue: Connection) -> None:
    """The events that wait behind it, and the events that come later, begin at once."""
    await flood(queue, "crowd")
    for number in range(5):
        await single(queue, f"waiting {number}")
    assert await share(queue) == timedelta(seconds=1)
    for number in range(5):
        await single(queue, f"new {number}")
    await single(queue, "crowd")
    found = await bands(queue)
    assert found.pop("crowd") == [0]
    assert set(map(tuple, found.values())) == {(4,)}
    others = await taken(queue, 10, 2)
    assert others.pop("crowd", 0) < 20 - 6, "one claim in eight may begin with the crowd"
    assert len(others) > 5


async def test_what_is_no_crowd_stays_together(queue: Connection) -> None:
    await flood(queue, "few", 100)
    assert await share(queue) is None
    await queue.execute("select agent.enqueue('other') from generate_series(1, 600)")
    await queue.execute("update agent.event set vt = vt - interval '10 seconds'")
    assert await share(queue, "other") is None
    fresh = """select agent.enqueue('fresh', '{"team_id": "T"}') from generate_series(1, 600)"""
    await queue.execute(fresh)
    assert await share(queue, "fresh") is None
    assert await queue.fetchval("select count(*) from agent.band") == 0


async def test_several_crowds_share_with_one_another(queue: Connection) -> None:
    """Each gets a band of its own, as one floods the band that the others' events went to."""
    for workspace in ("first", "second", "third"):
        await flood(queue, workspace)
        assert await share(queue) is not None
    await single(queue, "small")
    assert await bands(queue) == {"first": [0], "second": [4], "third": [5], "small": [6]}
    found = await taken(queue, 120)
    assert found["small"] == 1
    assert all(found[workspace] >= 15 for workspace in ("first", "second", "third")), found


async def test_crowds_behind_one_another_are_parted(queue: Connection) -> None:
    """All of them waited before the duty looked for the first time."""
    await flood(queue, "first", 700)
    await flood(queue, "second", 700)
    await queue.execute(
        "update agent.event set vt = vt - interval '1 hour' where event ->> 'team_id' = 'first'"
    )
    await share(queue)
    await queue.execute("update agent.event set vt = vt - interval '5 seconds' where lane > 15")
    await share(queue)
    assert await bands(queue) == {"first": [0], "second": [4]}
    await single(queue, "small")
    assert (await bands(queue))["small"] == [5]


async def test_a_band_is_shared_again_once_its_crowd_is_gone(queue: Connection) -> None:
    await flood(queue, "crowd")
    await share(queue)
    await queue.execute("delete from agent.event")
    assert await share(queue) is None
    assert await queue.fetchval("select count(*) from agent.band where workspace is not null") == 0
    await single(queue, "crowd")
    await single(queue, "other")
    assert await bands(queue) == {"crowd": [0], "other": [0]}
    await queue.execute("select agent.sweep_events()")
    assert await queue.fetchval("select count(*) from agent.band") == 0
    await flood(queue, "crowd")
    await share(queue)
    await queue.execute("delete from agent.event; select agent.sweep_events()")
    shared = "select count(*) from agent.band where workspace is not null"
    assert await queue.fetchval(shared) == 0, "a sweep ends what a dead worker began"


async def test_groups_keep_their_order(queue: Connection) -> None:
    """The head of a group moves alone; its members follow it as they become head."""
    await flood(queue, "crowd")
    members = [await single(queue, "other", group_key="g") for _ in range(3)]
    await share(queue)
    heads = "select id, agent.band_of(lane) from agent.event where group_key = 'g' and head"
    assert [tuple(row) for row in await queue.fetch(heads)] == [(members[0], 4)]
    await queue.execute("select agent.delete_event($1)", members[0])
    assert [tuple(row) for row in await queue.fetch(heads)] == [(members[1], 4)]


async def test_one_worker_at_a_time_shares_a_kind_beside_locks(queue: Connection, other: Connection) -> None:
    await flood(queue, "crowd")
    held, _ = await single(queue, "a"), await single(queue, "b")
    async with other.transaction():
        await other.execute("select agent.share_kind('job')")
        assert await queue.fetchval("select agent.share_kind('job')") is None
    await queue.execute("update agent.event set lane = lane % 16; delete from agent.band")
    async with locked(other, held):
        await share(queue)
        assert (await bands(queue))["b"] == [4]
    assert await queue.fetchval("select count(*) from agent.band where workspace <> ''") == 1


async def test_many_events_of_one_moment_are_passed(queue: Connection) -> None:
    """Rows of one transaction may share their vt: a step takes all of them."""
    await flood(queue, "crowd", 2400)
    await queue.execute(
        "update agent.event set lane = case when id % 2 = 0 then 3 else id % 16 end"
        ", vt = date_trunc('hour', vt)"
    )
    other = await single(queue, "other")
    await queue.execute("update agent.event set lane = 3 where id = $1", other)
    await share(queue)
    assert await bands(queue) == {"crowd": [0], "other": [4]}


async def test_all_bands_may_be_taken(queue: Connection) -> None:
    """A tenth crowd shares with the others until a band is free."""
    for number in range(10):
        await flood(queue, f"crowd {number}", 260)
        await share(queue)
    found = await bands(queue)
    taken = [0, *range(4, 12), 11]
    assert [found[f"crowd {number}"] for number in range(10)] == [[band] for band in taken]
    assert await Engine(queue).share_kind("job") == timedelta(seconds=1)
