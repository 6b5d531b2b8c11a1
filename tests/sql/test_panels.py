"""Operators read kinds, schedules, workflows, questions, workers and trends, each as it is."""

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from surelane.calls import Calls, Connection
from surelane.jobs import Continuation, Job
from surelane_operator.changes import Changes
from surelane_operator.reads.filters import Cursor
from surelane_operator.reads.queue import KindPage, list_questions, read_kinds, read_schedules, read_workers
from surelane_operator.reads.timeline import story_of
from surelane_operator.reads.trends import PLANS, READ, SPANS, Trend, Trends
from surelane_operator.reads.workflows import Workflow, list_workflows, read_workflow
from surelane_service.common.durations import Rate
from surelane_service.cron import Cron
from surelane_service.engine import Engine, Settled
from tests.databases import Server, as_role
from tests.sql.queue_steps import claim, complete, continue_with, enqueue, pair
from tests.sql.test_console_reads import fewest_pages, filled, scanned

DAY = timedelta(days=1)


async def kinds_of(queue: Connection, after: str | None = None, limit: int = 100) -> KindPage:
    await queue.execute("update agent.measurement set due = '-infinity'")
    return await read_kinds(Changes(queue), after, limit)


async def test_a_kind_shows_its_counts_and_who_paused_it(queue: Connection) -> None:
    for _ in range(3):
        await enqueue(queue, "mail", max_attempts=1)
    (failed,) = await claim(queue, "mail", limit=1)
    await queue.execute("select agent.settle($1, $2, '{fail}')", [failed["id"]], [failed["claim"]])
    await claim(queue, "mail", limit=1)
    await enqueue(queue, "note")
    await Changes(queue).pause("note")
    await Engine(queue).announce_worker("w1", ["mail"], "1.0.0", None, 7)

    mail, note = (await kinds_of(queue)).kinds

    assert mail.counts is not None
    assert (mail.counts.pending, mail.counts.running, mail.failed) == (1, 1, 1)
    assert (mail.paused, mail.workers, mail.max_attempts) == (False, ["w1"], 7)
    assert (note.paused, note.paused_by, note.workers) == (True, "surelane", [])
    assert note.paused_at is not None


async def test_kinds_come_in_pages_and_failures_of_earlier_days_do_not_count(queue: Connection) -> None:
    await queue.execute("insert into agent.kind (kind) select 'kind' || n from generate_series(1, 5) as n")
    for first_id, events, before in ((1, 5, DAY * 2), (10, 2, DAY / 2)):
        await ended(queue, first_id, events, before, kind="kind1", outcome="failed")
    first = await kinds_of(queue, limit=3)
    assert [(kind.kind, kind.failed) for kind in first.kinds] == [("kind1", 2), ("kind2", 0), ("kind3", 0)]
    second = await kinds_of(queue, first.next, limit=3)
    assert ([kind.kind for kind in second.kinds], second.next) == (["kind4", "kind5"], None)


async def test_a_limit_shows_what_it_declares_what_an_operator_set_and_what_runs(queue: Connection) -> None:
    await queue.execute("select agent.register_kinds(array['mail'])")
    await queue.execute(
        "select agent.declare_limits('w1', array['mail'], $1)",
        json.dumps({"mail": {"per": "workspace", "concurrency": 2}}),
    )
    await Changes(queue).set_limit("mail", concurrency=3, rate=Rate(60, timedelta(minutes=1)))
    for workspace in ("T1", "T1", "T1", "T2"):
        await enqueue(queue, "mail", payload=json.dumps({"team_id": workspace}))
    assert len(await claim(queue, "mail")) == 4
    limit = (await kinds_of(queue)).kinds[0].limit
    assert limit is not None
    assert (limit.per, limit.set_by, limit.rate) == ("workspace", "surelane", "60/1m")
    assert (limit.concurrency, limit.declared_concurrency) == (3, 2)
    assert [(each.limit_key, each.running, each.began) for each in limit.use] == [
        ("workspace:T1", 3, 3),
        ("workspace:T2", 1, 1),
    ]


async def test_a_schedule_shows_its_next_firings_and_its_last_run(queue: Connection) -> None:
    await Changes(queue).set_cron("report", Cron("0 9 * * *", "Europe/Berlin"), kind="mail", payload={"a": 1})
    await Changes(queue).set_cron("quiet", Cron("* * * * *"), kind="mail", payload={}, paused=True)
    due = await queue.fetchval("select next_at from agent.cron where name = 'report'")
    before = Cron("0 9 * * *", "Europe/Berlin").last_until(datetime.now(UTC))
    assert await Engine(queue).fire_cron("report", due, [before], due) == 1
    (row,) = await claim(queue, "mail")
    await complete(queue, pair(row))

    unreadable = "select agent.set_cron('odd', 'mail', 'never', now(), '{}', 'Nowhere', 'one', false, 1)"
    await queue.execute(unreadable)

    odd, quiet, report = (await read_schedules(Changes(queue))).schedules

    assert (odd.schedule, odd.following) == ("never", [])
    assert (quiet.following, quiet.last_run, quiet.paused) == ([], None, True)
    assert report.payload == {"a": 1}
    assert report.following[0] == due
    assert report.following[1] - due >= timedelta(hours=23)
    assert len(report.following) == 5
    assert report.last_run is not None
    assert (report.last_run.id, report.last_run.status) == (row["id"], "completed")
    assert report.last_run.scheduled_at == before


async def workflow(queue: Connection, identity: int, after: int = 0) -> Workflow:
    found = await read_workflow(Calls(queue), identity, after)
    assert found is not None
    return found


async def fanned_out(queue: Connection, children: int, kind: str = "plan") -> tuple[int, int]:
    await enqueue(queue, kind)
    (row,) = await claim(queue, kind)
    jobs = [Job("part", {"n": number}) for number in range(children)]
    assert await continue_with(queue, pair(row), jobs, Continuation("join")) == "done"
    return row["id"], await queue.fetchval("select max(id) from agent.event where kind = 'join'")


async def test_a_workflow_is_found_from_any_of_its_events(queue: Connection) -> None:
    planned, joining = await fanned_out(queue, 3)
    first, *_ = await claim(queue, "part", limit=1)
    await complete(queue, pair(first))

    tree = (await workflow(queue, joining)).tree
    assert (tree.id, tree.kind, tree.waits_for, tree.continues) == (joining, "join", 2, planned)
    assert tree.children == {"completed": 1, "pending": 2}
    assert {child.status for child in tree.below if child.id == first["id"]} == {"completed"}
    assert (len(tree.below), tree.more) == (3, None)

    assert (await workflow(queue, planned)).tree.id == joining
    seen_from_a_child = await workflow(queue, first["id"])
    assert [member.id for member in seen_from_a_child.path] == [joining]
    assert seen_from_a_child.tree.children is None
    assert await read_workflow(Calls(queue), 10**15) is None
    jobs: list[Any] = [await Changes(queue).get(identity) for identity in (planned, joining)]
    said = [step for job in jobs for step in story_of(job)]
    assert [(step.what, step.detail) for step in said if step.what in ("fanned out", "continues")] == [
        ("fanned out", f"3 children; event {joining} continues when they have ended"),
        ("continues", f"event {planned}, which fanned out"),
    ]


async def test_a_fan_out_below_another_is_a_branch_and_many_children_come_in_pages(queue: Connection) -> None:
    _, joining = await fanned_out(queue, 2)
    (part,) = await claim(queue, "part", limit=1)
    assert await continue_with(queue, pair(part), [Job("crumb")] * 2, Continuation("inner")) == "done"
    tree = (await workflow(queue, joining)).tree
    inner = tree.below[-1]
    assert (inner.kind, inner.continues, inner.children) == ("inner", part["id"], {"pending": 2})
    assert [child.kind for child in inner.below] == ["crumb", "crumb"]
    assert [member.kind for member in (await workflow(queue, inner.below[0].id)).path] == ["join", "inner"]
    _, joining = await fanned_out(queue, 120)
    seen: list[int] = []
    after: int | None = 0
    while after is not None:
        tree = (await workflow(queue, joining, after)).tree
        assert tree.children == {"pending": 120}
        seen += [child.id for child in tree.below]
        after = tree.more
    assert (len(seen), seen) == (120, sorted(seen))


async def test_workflows_are_listed_live_ones_first(queue: Connection) -> None:
    _, ended = await fanned_out(queue, 1)
    await complete(queue, *[pair(row) for row in await claim(queue, "part")])
    await complete(queue, *[pair(row) for row in await claim(queue, "join")])
    live = [(await fanned_out(queue, 2))[1] for _ in range(2)]
    first = (await list_workflows(Calls(queue), limit=2)).workflows
    assert [node.id for node in first] == live[::-1]
    (last,) = (await list_workflows(Calls(queue), Cursor(first[-1].id), limit=2)).workflows
    assert (last.id, last.status, last.children) == (ended, "completed", {"completed": 1})
    assert not (await list_workflows(Calls(queue), Cursor(last.id, last.finished_at))).workflows


ASKED: dict[str, Any] = {"ts": "1.5", "channel": "C1", "thread_ts": "1.0", "at": "2026-01-01T00:00:00Z"}
ASKED |= {"text": "Shall I?" + "x" * 300, "choices": ["Yes", "No"], "by": ["U1"], "judged": False}


async def ask(queue: Connection, seconds: float | None = None) -> int:
    """Run a job until it asks a person. Return its id."""
    await enqueue(queue, "deploy")
    (row,) = await claim(queue, "deploy")
    await queue.execute(
        "select agent.store_step($1, $2, 'ask:1 asked', 1, null, $3::json, '[]', interval '0', true)",
        *pair(row),
        json.dumps(ASKED),
    )
    waits = {"waits": [{"sort": "wait", "name": "ask:1", "nth": 1, "seconds": seconds}], "blocking": False}
    assert await Engine(queue).settle([(*pair(row), "suspend", json.dumps(waits))]) == [Settled.DONE]
    identity: int = row["id"]
    return identity


async def test_an_open_question_says_who_may_answer_and_until_when(queue: Connection) -> None:
    first, second = await ask(queue), await ask(queue, 3600)
    newest, oldest = (await list_questions(Changes(queue))).questions
    assert (newest.id, oldest.id) == (second, first)
    assert (oldest.by, oldest.choices, oldest.until) == (["U1"], ["Yes", "No"], None)
    assert (oldest.channel, oldest.ts) == ("C1", "1.5")
    assert newest.until is not None
    assert abs(newest.until - newest.asked_at - timedelta(hours=1)) < timedelta(minutes=5)
    assert (newest.question, len(newest.text or "")) == ("ask:1", 200)
    following = await list_questions(Changes(queue), Cursor(newest.id, newest.asked_at), 1)
    assert [q.id for q in following.questions] == [first]


@pytest.mark.parametrize("how", ["answer", "cancel", "pass", "no question"])
async def test_a_question_closes_and_a_wait_for_a_program_is_none(queue: Connection, how: str) -> None:
    identity = await ask(queue, 60)
    match how:
        case "answer":
            await queue.execute("select agent.send_signal($1, 'ask:1', '{}', true, 'U1')", identity)
        case "cancel":
            assert await Changes(queue).cancel(identity) == "cancelled"
        case "no question":
            await queue.execute("delete from agent.step where name like '% asked'")
        case _:
            await queue.execute("update agent.test_clock set shift = '2 minutes'")
    assert not (await list_questions(Changes(queue))).questions


async def test_a_worker_shows_what_it_runs(queue: Connection) -> None:
    await Engine(queue).introduce_worker("w1", "1.0.0", ["job"], None, (10, 5))
    for name in ("w1", "w2"):
        await Engine(queue).announce_worker(name, ["job"], "1.0.0")
    for number in range(3):
        await enqueue(queue, group_key="g" if number else None)
    rows = await claim(queue, limit=10)
    await enqueue(queue, run_at=datetime.now(UTC) + DAY)

    busy, idle = (await read_workers(Changes(queue), each=1)).workers

    assert (busy.name, busy.state, busy.version) == ("w1", "alive", "1.0.0")
    assert (busy.running, len(busy.runs)) == (2, 1)
    assert busy.runs[0].id in {row["id"] for row in rows}
    assert (busy.slots, busy.interactive_slots, idle.slots) == (10, 5, None)
    assert (idle.name, idle.running, idle.runs) == ("w2", 0, [])
    (one,) = (await read_workers(Changes(queue), "w1")).workers
    assert len(one.runs) == 2


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
