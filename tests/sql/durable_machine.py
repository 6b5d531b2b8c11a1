"""Do each step of durable handlers to the queue and to its model: waits, children, successors, new runs, tags."""

import json
import re
from collections import Counter
from datetime import datetime, timedelta
from random import Random
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.jobs import Job, job_text
from tests.sql.machine import NUMBERS, PLACES, Machine, at, claim_rule, rule
from tests.sql.model import HOOKED, Event, Step, is_child
from tests.sql.queue_steps import settle

EMPTY = "delete from agent.step; delete from agent.signal"
HOOK = "insert into agent.kind (kind) select 'surelane.failed:' || kind from unnest($1::text[]) as kind"
STEPS = """
select event_id, name, nth, sort, finished_at is not null, due_at, result #>> '{value,outcome}' from agent.step
where nth > 0
"""
SIGNALS = """
select event_id, name, taken_by, row_number() over (partition by event_id, name order by id) from agent.signal
"""
TAGS = "select event_id, name, arguments from agent.step where nth = -1"
HOOKS = """
delete from agent.event where starts_with(kind, 'surelane.failed:')
returning (event #>> '{failure,id}')::int8, event #>> '{failure,outcome}'
"""
NAMES = ["a", "b"]
"""Of steps, sleeps, waits and signals. Their names differ by their sort, as in a handler whose code stays the same."""
CHILD = "slack.calm"

Wait = tuple[str, str, int, bool]


def some_waits(chance: Random) -> list[Wait]:
    sorts = ["sleep", "wait", "wait", "step", "child", "child"]
    return [
        (chance.choice(sorts), chance.choice(NAMES), chance.choice([1, 400, 4000]), chance.random() < 0.5)
        for _ in range(chance.randrange(1, 4))
    ]


class DurableMachine(Machine):
    """The queue's machine, with handlers that store steps, wait, have children and run again."""

    def __init__(self, queue: Connection, *others: Any) -> None:
        super().__init__(queue, *others)
        self.run(queue.execute(EMPTY))
        self.run(queue.execute(HOOK, list(HOOKED)))

    @claim_rule(12, name=NAMES, fails=[True, False, False])
    def store_a_step(self, item: tuple[int, int], event: Event | None, name: str, fails: bool) -> None:
        """Store its result, or that a try has failed. A step that is done stays."""
        answer = self.value(
            "select agent.store_step($1, $2, $3, 1, null, $4, $5, '0', $6)",
            *item,
            f"step {name}",
            None if fails else "1",
            '[{"type": "E"}]' if fails else "[]",
            not fails,
        )
        assert answer == ("stale" if event is None else "done")
        if event is None:
            return
        step = event.steps.setdefault((f"step {name}", 1), Step("step", self.model.now))
        if not step.done:
            step.stored_at, step.due, step.done = self.model.now, None, not fails
        if not fails:
            self.model.progress(event)

    @claim_rule(12, name=NAMES, value=[None, "x", "y"])
    def tag_an_event(self, item: tuple[int, int], event: Event | None, name: str, value: str | None) -> None:
        tag = None if value is None else {"found_by": value, "value": value}
        answer = self.value("select agent.store_tags($1, $2, $3)", *item, json.dumps({name: tag}))
        assert answer == ("stale" if event is None else "done")
        if event is not None and value is None:
            event.tags.pop(name, None)
        elif event is not None and value is not None:
            event.tags[name] = value

    @claim_rule(30, given=some_waits, blocking=[True, False, False])
    def suspend_a_handler(
        self, item: tuple[int, int], event: Event | None, given: list[Wait], blocking: bool
    ) -> None:
        """Suspend it on several waits. Those for children are waits without a time."""
        wanted = [self.wait_of(each) for each in {each[:2]: each for each in given}.values()]
        known = {} if event is None else event.steps
        # The handler does not park at what is done, nor awaits a child that it has not started.
        wanted = [
            (sort, name, nth, seconds)
            for sort, name, nth, seconds in wanted
            if not ((step := known.get((name, nth))) and step.done) and (step or not is_child(name))
        ]
        if not wanted:
            return
        listed = [dict(zip(("sort", "name", "nth", "seconds"), each, strict=True)) for each in wanted]
        argument = json.dumps({"waits": listed, "blocking": blocking})
        answers = self.run(settle(self.queue, [item], "suspend", [argument]))
        assert answers == ["stale" if event is None else "done"]
        if event is None:
            return
        if event.cancelled:
            self.model.archive([event], "cancelled", "cancelled while running")
        else:
            self.model.suspend(event, wanted, blocking=blocking)

    def wait_of(self, given: Wait) -> tuple[str, str, int, int | None]:
        sort, name, pause, timed = given
        if sort == "child":
            return "wait", f"child {CHILD} [{name}]:1", 1, None
        return sort, f"{sort} {name}", 1, pause if timed or sort != "wait" else None

    @rule(30, number=PLACES, name=NAMES)
    def send_a_signal(self, number: int, name: str) -> None:
        event = self.some(number)
        answer = self.value("select agent.signal_event($1, $2)", event.id if event else -1, f"wait {name}")
        assert answer == ("sent" if event else None)
        self.model.send(event, f"wait {name}")

    @claim_rule(30, name=NAMES, nth=[1, 2], timeout=[None, 1, 4000])
    def take_a_signal(
        self, item: tuple[int, int], event: Event | None, name: str, nth: int, timeout: int | None
    ) -> None:
        seconds = None if timeout is None else timedelta(seconds=timeout)
        answer = self.value(
            "select answer from agent.take_signal($1, $2, $3, $4, $5)", *item, f"wait {name}", nth, seconds
        )
        assert answer == ("stale" if event is None else self.model.take(event, f"wait {name}", nth, timeout))

    @claim_rule(12)
    def end_sleeps(self, item: tuple[int, int], event: Event | None) -> None:
        assert self.value("select agent.end_sleeps($1, $2)", *item) == ("stale" if event is None else "done")
        for step in event.steps.values() if event else ():
            if step.sort == "sleep" and not step.done and step.due is not None and step.due <= self.model.now:
                step.done, step.stored_at = True, self.model.now

    @claim_rule(24, key=NAMES)
    def run_a_child(self, item: tuple[int, int], event: Event | None, key: str) -> None:
        """Start a child, find it, or take its end."""
        wait = f"child {CHILD} [{key}]:1"
        owner = "" if event is None else event.item_key or str(event.id)
        child_key = f"{owner}:{CHILD} [{key}]:1"
        expected = self.child_answer(event, wait, child_key)
        call = "select answer from agent.run_child($1, $2, $3, null, $4, false, 'leave')"
        if expected == "refused":
            with pytest.raises(asyncpg.UniqueViolationError, match="is in the queue already"):
                self.value(call, *item, wait, job_text(Job(CHILD)))
            return
        assert self.value(call, *item, wait, job_text(Job(CHILD))) == (
            "done" if expected == "past" else expected
        )
        if event is None or expected in ("done", "busy", "found"):
            return
        if expected == "past":
            self.model.send(event, wait, "completed")
            self.model.take(event, wait, 1, None)
            return
        new = self.unknown()
        if (wait, 1) not in event.steps or new:
            self.started(event, wait, child_key, new)

    def unknown(self) -> set[int]:
        """Return the ids of live events that the model does not know yet."""
        rows = self.run(self.queue.fetch("select id from agent.event"))
        return {row["id"] for row in rows} - self.model.live.keys()

    def started(self, event: Event, wait: str, key: str, new: set[int]) -> None:
        """Let the model start the child whose id is new, or find one of an earlier run that still lives."""
        now = self.model.now
        for identity in new:
            self.model.add(Event(identity, CHILD, now, now, key, parent=event.id, awaited=wait))
        event.steps.setdefault((wait, 1), Step("wait", now))
        self.model.progress(event)

    def child_answer(self, event: Event | None, wait: str, key: str) -> str:
        """Say what becomes of a call. ``past``: its child ended while the parent was in history."""
        if event is None:
            return "stale"
        if self.model.take(event, wait, 1, None) == "done":
            return "done"
        if event.cancelled:
            return "busy"
        live = [each for each in self.model.live.values() if (each.parent, each.awaited) == (event.id, wait)]
        if (wait, 1) in event.steps and (live or self.model.ended_child(event, wait)):
            return "pending" if live else "past"
        taken = [other for other in self.model.live.values() if other.item_key == key]
        return "refused" if taken and not live else "pending"

    @claim_rule(6)
    def continue_as_new(self, item: tuple[int, int], event: Event | None) -> None:
        kind = event.kind if event else CHILD
        then = {"kind": kind, "payload": {"again": 1}}
        argument = json.dumps({"children": [], "continuation": then, "result": None, "anew": True})
        late = event is not None and event.cancelled and event.vt <= self.model.now
        answers = self.run(settle(self.queue, [item], "fan_out", [argument]))
        assert answers == ["stale" if event is None or late else "done"]
        if event is not None and late:
            self.model.cancel_late(event)
        elif event is not None:
            (successor,) = self.unknown()
            self.model.continue_anew(event, successor)

    @rule(12, number=PLACES, step=NUMBERS, some=[True, True, False])
    def run_again_as_new(self, number: int, step: int, some: bool) -> None:
        """Run an ended event again as a new one, from one of its steps or with none."""
        if not self.model.history:
            return
        ended = list(self.model.history.values())[number % len(self.model.history)]
        old = ended.event
        started = sorted(old.steps) if some else []
        start = started[step % len(started)] if started else None
        label = start and (start[0] if start[1] == 1 else f"{start[0]} ({start[1]})")
        row = self.run(self.queue.fetchrow("select * from agent.rerun_as_new($1, $2, null)", old.id, label))
        assert row["answer"] == "rerun"
        root = re.sub(r":rerun:\d+$", "", old.item_key or str(old.id))
        assert row["key"] == f"{root[:160]}:rerun:{row['rerun']}"
        self.model.fork(ended, start, self.model.again(old, row["rerun"], row["key"]))

    # What the queue's machine does otherwise with durable handlers

    def step_beside_an_open_insert(self, number: int, kind: str, group: str, commits: bool, how: str) -> None:
        """Parents in groups that another transaction has entered are busy: no model knows that."""
        if not any(event.parent is not None for event in self.model.live.values()):
            super().step_beside_an_open_insert(number, kind, group, commits, how)

    def both_are_the_same(self) -> None:
        hooks = [tuple(row) for row in self.run(self.queue.fetch(HOOKS))]
        assert sorted(hooks) == sorted(self.model.hooked)
        self.model.hooked.clear()
        super().both_are_the_same()
        every = [*self.model.live.values(), *(ended.event for ended in self.model.history.values())]
        self.same(
            STEPS,
            [
                (event.id, *key, step.sort, step.done, self.moment(step), step.outcome)
                for event in every
                for key, step in event.steps.items()
            ],
        )
        signals = [
            (event.id, name, signal.taken_by, nth)
            for event in every
            for name in {signal.name for signal in event.signals}
            for nth, signal in enumerate((signal for signal in event.signals if signal.name == name), start=1)
        ]
        self.same(SIGNALS, signals)
        self.same(TAGS, [(event.id, *tag) for event in every for tag in event.tags.items()])

    def same(self, query: str, expected: list[tuple[Any, ...]]) -> None:
        rows, wanted = Counter(tuple(row) for row in self.run(self.queue.fetch(query))), Counter(expected)
        assert rows == wanted, f"the database alone has {rows - wanted}, the model alone {wanted - rows}"

    def moment(self, step: Step) -> datetime | None:
        return None if step.due is None else at(step.due)
