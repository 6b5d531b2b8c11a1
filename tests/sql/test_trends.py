"""What the page draws over time is what happened, and costs no more behind a long history."""

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from surelane.calls import Calls, Connection
from surelane_operator.reads.trends import PLANS, READ, SPANS, Trend, Trends
from surelane_service.engine import Engine
from tests.databases import Server, as_role
from tests.sql.queue_steps import enqueue
from tests.sql.test_console_reads import fewest_pages, filled, scanned

ENDED = """
insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, kind, item_key, group_key, head, lane
, enqueued_at, enqueued_by, claimed_by, retrying, errors, outcome, finished_at)
select $1::int8 + n, at, 1, at, array[at - interval '1 second'], '{}', $2, 'E' || $1::int8 + n, 'T' || n % 2 || ':C1'
, true, 0, at - interval '1 second' - make_interval(secs => $6), 'ingest', 'w', false, '[]', $3, at
from generate_series(0, $4::int4 - 1) as n
cross join lateral (select date_trunc('minute', now()) - $5::interval + n * interval '1 millisecond' as at) as moment
"""
MINUTE = timedelta(minutes=1)


async def ended(queue: Connection, first: int, events: int, before: timedelta, **given: Any) -> None:
    """Store events that ended one after the other from the beginning of a minute on."""
    how = {"kind": "chat", "outcome": "completed", "wait": 2.0} | given
    await queue.execute("insert into agent.kind values ($1) on conflict do nothing", how["kind"])
    await queue.execute(ENDED, first, how["kind"], how["outcome"], events, before, how["wait"])


async def trend(queue: Connection, kind: str | None = None, span: str = "hour") -> Trend:
    return await Trends(Calls(queue)).latest(kind, span)


async def test_each_minute_has_what_ended_in_it_by_outcome(queue: Connection) -> None:
    await ended(queue, 1, 7, 3 * MINUTE)
    await ended(queue, 100, 2, 3 * MINUTE, outcome="failed")
    await ended(queue, 200, 5, 30 * MINUTE)
    await ended(queue, 300, 4, 90 * MINUTE)
    found = await trend(queue)
    assert [round(sum(found.series[outcome])) for outcome in ("completed", "failed")] == [12, 2]
    assert sorted(count for count in found.series["completed"] if count) == [5, 7]
    assert found.series["completed"].index(7) == found.series["failed"].index(2)
    assert found.series["completed"].index(7) - found.series["completed"].index(5) == 27
    assert not found.estimated
    assert sum((await trend(queue, span="day")).series["completed"]) == 16


async def test_a_kind_has_its_own_trend_and_the_slowest_decides_the_wait(queue: Connection) -> None:
    await ended(queue, 1, 8, MINUTE)
    await ended(queue, 100, 10, MINUTE, kind="mail", wait=30)
    assert sum((await trend(queue, "mail")).series["completed"]) == 10
    assert (await trend(queue, "none")).series["completed"] == [0] * 60
    found = await trend(queue)
    assert [sum(found.series[name]) for name in ("p50", "p95")] == [30, 30]
    assert {workspace: sum(counts) for workspace, counts in found.workspaces.items()} == {"T0": 9, "T1": 9}


async def test_many_events_are_estimated_by_their_ids_however_they_come(queue: Connection) -> None:
    """A burst of 2,000 events ended within two seconds of a minute."""
    await ended(queue, 1, 2000, 5 * MINUTE)
    found = await trend(queue)
    assert found.estimated
    assert sum(found.series["completed"]) == pytest.approx(2000, rel=0.05)


async def test_depths_are_kept_each_five_minutes_for_a_day(queue: Connection) -> None:
    # 3.5 minutes after a half hour began: the last measurement, 27.5 minutes later, is the first of the next part.
    await queue.execute(
        "update agent.test_clock set shift ="
        " date_bin('30 minutes', now(), 'epoch') + interval '33 minutes 30 seconds' - now()"
    )
    for kind in ("mail", "mail", "note"):
        await enqueue(queue, kind)
    a_day = (
        "select jsonb_agg(jsonb_build_array(extract(epoch from agent.clock())::int8 - 300 * n, '{}'::jsonb))"
    )
    a_day += " from (select n from generate_series(286, 1, -1) as n) as earlier"
    await queue.execute(f"update agent.measurement set trail = ({a_day})")
    for _ in range(9):  # each second one comes too soon
        await queue.execute("update agent.test_clock set shift = shift + interval '150 seconds'")
        await Engine(queue).figures()
    await enqueue(queue, "note")
    await queue.execute("update agent.test_clock set shift = shift + interval '300 seconds'")
    await Engine(queue).figures()
    assert await queue.fetchval("select jsonb_array_length(trail) from agent.measurement") == 288
    trail = json.loads(await queue.fetchval("select trail from agent.measurement"))
    assert min(later[0] - earlier[0] for earlier, later in pairwise(trail)) >= 290
    assert trail[-2][1] == {"mail": [2, 0, 0], "note": [1, 0, 0]}
    everything, notes = await trend(queue, span="day"), await trend(queue, "note", "day")
    assert (everything.series["pending"][-2:], notes.series["pending"][-1]) == ([3, 4], 2)


@pytest.mark.slow
async def test_a_long_history_costs_no_more_pages(server: Server, template: str) -> None:
    """A part reads at most 40 pages of a kind and an outcome, also behind a long history."""
    read = dict[tuple[int, str], int]()
    for events in (8_000, 60_000):
        async with server.fresh(template) as name:
            await (await filled(server, name, events)).close()
            operator = await asyncpg.connect(as_role(server.uri(name), "surelane_operator"))
            given = "text, timestamptz, timestamptz, interval, int4"
            await operator.execute(f"prepare trend ({given}) as {READ}")
            for span, (part, parts) in SPANS.items():
                assert sum((await trend(operator, span=span)).series["completed"]) > 3000
                until = datetime.now(UTC)
                given = f"execute trend (null, '{until - parts * part}', '{until}', '{part}', {parts})"
                async with operator.transaction():
                    await operator.execute(PLANS)
                    read[events, span] = await fewest_pages(operator, given)
                    assert await scanned(operator, given) == []
                assert read[events, span] < 40 * parts * 10
            await operator.close()
    assert read[60_000, "hour"] <= 2 * read[8_000, "hour"] + 400
