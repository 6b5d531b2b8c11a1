"""Operators read kinds, schedules, workflows, questions and workers, each as it is."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from surelane.calls import Calls, Connection
from surelane.jobs import Continuation, Job
from surelane_operator.changes import Changes
from surelane_operator.reads.filters import Cursor
from surelane_operator.reads.queue import KindPage, list_questions, read_kinds, read_schedules, read_workers
from surelane_operator.reads.timeline import story_of
from surelane_operator.reads.workflows import Workflow, list_workflows, read_workflow
from surelane_service.cron import Cron
from surelane_service.durations import Rate
from surelane_service.engine import Engine, Settled
from tests.sql.queue_steps import claim, complete, continue_with, enqueue, pair
from tests.sql.test_trends import ended

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


ASKED = {"ts": "1.5", "channel": "C1", "thread_ts": "1.0", "at": "2026-01-01T00:00:00Z"}
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
    assert abs(newest.until - newest.asked_at - timedelta(hours=1)) < timedelta(seconds=1)
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
