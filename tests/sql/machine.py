"""Do each step to the queue and to its model, and compare both after it."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from random import Random
from typing import Any, TypeVar

import asyncpg
import pytest

from surelane.calls import Connection
from tests.sql.model import AT_ONCE, CANCEL_GRACE, DEAD_FOR, LEASE, LIMITS, Event, Model
from tests.sql.queue_steps import claim, claim_one, complete, extend, fail, release, snooze

START = datetime(2024, 1, 1, tzinfo=UTC)
EMPTY = (
    "delete from agent.event; delete from agent.event_hist; delete from agent.kind;"
    " delete from agent.kind_limit; delete from agent.limit_state; delete from agent.limit_note;"
    " update agent.test_clock set at = '2024-01-01 00:00:00+00';"
    # A limit that is never reached: it parks events, and claims must find all of them. And one that is reached.
    " select agent.set_limit('slack.few', 10000, 1000000, '1 day', null)"
    f"; select agent.set_limit('slack.two', {AT_ONCE}, null, null, null)"
)
LIVE = (
    "select id, head, vt, attempts, cardinality(claimed), claimed_by is not null, heartbeat_at, retrying"
    ", cancelled_by is not null, jsonb_array_length(errors), agent.priority_of(lane) from agent.event"
)
ENDED = (
    "select id, outcome, reason, attempts, cardinality(claimed), jsonb_array_length(errors), agent.priority_of(lane)"
    " from agent.event_hist"
)
OUTRANKED = (
    "select group_key from agent.event as e where head and group_key is not null"
    " and agent.outranked(e, agent.claimable_kinds(), agent.clock())"
)

KINDS = ["slack.calm", "slack.parked", "slack.few", "slack.two", "slack.two"]
TEAMS = {
    "all": ["slack.calm", "slack.parked", *LIMITS],
    "ours": ["slack.calm", "slack.two"],
    "theirs": ["slack.parked", "slack.few"],
}
"""The kinds of workers that handle everything, and of two teams that share the queue."""

GROUPS = ["g", "g", "g", "h", None]
NUMBERS = range(10_000)
PLACES = [0, 0, 0, 1, 7]
"""Mostly the first claim that stands, so that one handler does several things."""
PAUSES = [0, 0, 0, 1, 400, 4000]
SETTLES = ["complete", "fail", "fail", "release", "snooze", "extend"]

Method = TypeVar("Method", bound=Callable[..., object])
Draw = Sequence[Any] | Callable[[Random], Any]


def rule(weight: int, **draws: Draw) -> Callable[[Method], Method]:
    """Make a method a step of random walks: how often it comes, and what its arguments are drawn from."""

    def marked(method: Method) -> Method:
        method.rule = weight, draws  # type: ignore[attr-defined]
        return method

    return marked


def claim_rule(
    weight: int, *, number: Draw = PLACES, **draws: Draw
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a method a step of a claim that stands, or of any earlier one, so that many steps come too late."""

    def marked(method: Callable[..., None]) -> Callable[..., None]:
        @rule(weight, number=number, stands=[True] * 4 + [False], **draws)
        @wraps(method)
        def of_one(self: "Machine", number: int, stands: bool, *given: Any, **named: Any) -> None:
            if not self.standing():
                self.claim_something("all")
            if claims := self.standing() if stands else self.claims:
                item = claims[number % len(claims)]
                method(self, item, self.model.standing(*item), *given, **named)

        return of_one

    return marked


def drawn(chance: Random, draw: Draw) -> Any:
    return draw(chance) if callable(draw) else chance.choice(draw)


def some_slack_events(chance: Random) -> list[tuple[int, str, str | None]]:
    """There are ten of them, so that most become duplicates."""
    return [
        (chance.randrange(10), chance.choice(KINDS), chance.choice(["g", "h", None]))
        for _ in range(chance.randrange(1, 7))
    ]


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def slack_event(number: int, kind: str, group: str | None) -> str:
    """Return one of the events that the rules insert, in an envelope."""
    inner = {
        "type": kind.removeprefix("slack."),
        "channel": group,
        "event_ts": str(START.timestamp() + number),
    }
    return json.dumps({"event_id": f"Ev{number}", "type": "event_callback", "event": inner})


def in_order(batch: list[tuple[int, str, str | None]]) -> Callable[[int], tuple[bool, str, int]]:
    """Sort a batch as the queue inserts it: by group and key, events without a group last."""
    return lambda nth: (batch[nth][2] is None, batch[nth][2] or "", batch[nth][0])


class Machine:
    """Each rule does one step to the queue and its model, and compares the answers."""

    def __init__(self, queue: Connection, other: Connection, run: Callable[[Any], Any]) -> None:
        """Take two connections to the same database."""
        self.queue, self.other, self.run, self.model = queue, other, run, Model()
        self.claims: list[tuple[int, int]] = []
        self.outranked: set[str] = set()
        self.elected_at = 0
        self.run(queue.execute(EMPTY))

    def walk(self, chance: Random, steps: int) -> None:
        """Take random steps, and compare all rows after each. Lanes are drawn alike, too."""
        for connection in (self.queue, self.other):
            self.run(connection.execute("select setseed($1)", chance.random()))
        rules: dict[str, tuple[int, dict[str, Draw]]] = {
            name: member.rule
            for of in reversed(type(self).__mro__)
            for name, member in vars(of).items()
            if hasattr(member, "rule")
        }
        weights = [weight for weight, _ in rules.values()]
        for name in chance.choices(list(rules), weights, k=steps):
            arguments = {key: drawn(chance, draw) for key, draw in rules[name][1].items()}
            getattr(self, name)(**arguments)
            self.both_are_the_same()

    def value(self, statement: str, *arguments: Any) -> Any:
        return self.run(self.queue.fetchval(statement, *arguments))

    def standing(self) -> list[tuple[int, int]]:
        """Return the claims that still stand."""
        return [item for item in self.claims if self.model.standing(*item)]

    def some(self, number: int) -> Event | None:
        """Choose one of the live events."""
        events = list(self.model.live.values())
        return events[number % len(events)] if events else None

    @rule(9, number=range(10), kind=KINDS, group=GROUPS)
    def insert_a_slack_event(self, number: int, kind: str, group: str | None) -> None:
        key = f"Ev{number}"
        live = self.live_under(key)
        past = self.past_under(key)
        identity = self.value("select agent.insert_event($1)", slack_event(number, kind, group))
        if live:
            assert identity == live[0]
            return
        if past:  # deleted before it joined its group
            assert identity in past  # an event that continued as a new one has its key, too
            return
        self.model.add(Event(identity, kind, number, self.model.now, item_key=key, group=group))

    @rule(3, batch=some_slack_events)
    def insert_a_batch_of_slack_events(self, batch: list[tuple[int, str, str | None]]) -> None:
        """Insert all new events at once. Delete those that history has. Repetitions change nothing."""
        rows = self.run(
            self.queue.fetch(
                "select * from agent.insert_events($1) order by ordinal",
                [slack_event(*each) for each in batch],
            )
        )
        answers = [(row["id"], row["duplicate"]) for row in rows]
        first = {number: nth for nth, (number, *_) in reversed(list(enumerate(batch)))}
        for nth, (number, *_) in enumerate(batch):
            assert nth == first[number] or answers[nth] == (answers[first[number]][0], True)
        known = [
            self.add_of_batch(batch[nth], *answers[nth])
            for nth in sorted(first.values(), key=in_order(batch))
        ]
        for newcomer in filter(None, known):
            self.model.remove(newcomer)

    def add_of_batch(
        self, event: tuple[int, str, str | None], identity: int, duplicate: bool
    ) -> Event | None:
        """Add the new events and compare the answers. Return the events that history has."""
        number, kind, group = event
        live, past = self.live_under(f"Ev{number}"), self.past_under(f"Ev{number}")
        assert duplicate is bool(live or past)
        assert not duplicate or identity in live + past
        if live:
            return None
        newcomer = Event(
            -1 - number if past else identity, kind, number, self.model.now, f"Ev{number}", group=group
        )
        self.model.add(newcomer)
        return newcomer if past else None

    def live_under(self, key: str) -> list[int]:
        return [event.id for event in self.model.live.values() if event.item_key == key]

    def past_under(self, key: str) -> list[int]:
        return [ended.event.id for ended in self.model.history.values() if ended.event.item_key == key]

    @rule(
        9,
        kind=KINDS,
        group=GROUPS,
        key=[None, "i", "j"],
        dedupe=[None, None, "i", "j"],
        wait=PAUSES,
        attempts=[None, 1, 2],
        priority=range(4),
    )
    def enqueue_a_job(
        self,
        kind: str,
        group: str | None,
        key: str | None,
        dedupe: str | None,
        wait: int,
        attempts: int | None,
        priority: int = 1,
    ) -> None:
        vt = self.model.now + wait
        duplicates = [] if key is None else self.live_under(key)
        if dedupe is not None:
            waiting = (event for event in self.model.live.values() if event.claims == 0)
            duplicates += [event.id for event in waiting if event.dedupe_key == dedupe]
        call = "select agent.enqueue($1, '{}', $2::int4, $3, $4, $5, $6, $7)"
        given = kind, priority, dedupe, at(vt), attempts, group, key
        if duplicates and self.model.live[duplicates[0]].kind.partition("@")[0] != kind:
            with pytest.raises(asyncpg.UniqueViolationError, match="a key of its own"):
                self.value(call, *given)
            return
        identity = self.value(call, *given)
        if duplicates:
            assert identity == duplicates[0]
        else:
            self.model.add(Event(identity, kind, vt, vt, key, dedupe, group, attempts or 3, priority))

    @rule(6, seconds=[1, 200, LEASE - 1, LEASE, LEASE, 4000])
    def let_time_pass(self, seconds: int) -> None:
        self.model.now += seconds
        self.run(self.queue.execute("update agent.test_clock set at = $1", at(self.model.now)))

    @rule(15, how=["all", "ours", "theirs", "single", "lost"])
    def claim_something(self, how: str) -> None:
        if not self.model.live:
            self.fill_a_group()
        match how:
            case "single":
                self.claim_a_single_one()
            case "lost":
                self.claim_all("all")
                self.let_time_pass(LEASE)
            case team:
                self.claim_all(team)

    @rule(6)
    def fill_a_group(self) -> None:
        for kind, attempts in (("slack.parked", None), ("slack.calm", 1), ("slack.calm", 2)):
            self.enqueue_a_job(kind, "g", None, None, 0, attempts)

    def claim_all(self, team: str) -> None:
        kinds = TEAMS[team]
        heads, room = self.model.claimable(kinds), self.model.room("slack.two")
        rows = self.run(claim(self.queue, *kinds, limit=1000))
        taken = {row["id"] for row in rows}
        two = [head for head in heads if head.kind == "slack.two"]
        few = [head for head in two if not self.model.is_held_back(head)]
        # One that is held back may take up room in this claim, or find none and stay.
        assert (
            0 <= min(len(few), room) - len([head for head in few if head.id in taken]) <= len(two) - len(few)
        )
        # Of those the queue chooses which ones run.
        reached = [
            head
            for head in heads
            if head not in two or head.id in taken or (head not in few and self.is_free(head))
        ]
        batches = [self.claim_group(head, kinds, taken) for head in reached]
        expected = [event for batch in batches for event in batch]
        assert {(row["id"], row["claim"], row["attempts"]) for row in rows} == {
            (event.id, event.claims, event.attempts) for event in expected
        }
        self.claims += [(event.id, event.claims) for event in expected]

    def claim_group(self, head: Event, kinds: list[str], taken: set[int]) -> list[Event]:
        """Let the model claim a head with its group. Nothing that waits is overtaken."""
        again = head.retrying
        batch = self.model.claim(head, kinds, beats=True)
        if not batch and head.group is not None:
            # Fenced. A claim takes the elected head, too, where it looks later for heads like it.
            elected = self.model.live[self.model.heads[head.group][0]]
            return self.claim_group(elected, kinds, taken) if elected.id in taken else []
        assert not batch or not self.model.overtaken(head.group, batch, again=again)
        return batch

    def is_free(self, event: Event) -> bool:
        free: bool = self.value("select claimed_by is null from agent.event where id = $1", event.id)
        return free

    def claim_a_single_one(self) -> None:
        held_back = [event for event in self.model.claimable(KINDS) if self.model.is_held_back(event)]
        row = self.run(claim_one(self.queue))
        for event in held_back:
            if self.is_free(event):
                self.model.fence(event.group)  # the claim met it, and looked for another one
        candidates = {
            event.id: event
            for event in self.model.claimable(KINDS)
            if event.kind != "slack.two" or self.model.room("slack.two") > 0
        }
        if row is None:
            assert not candidates
        else:
            self.model.claim(candidates[row["id"]], [], beats=False)
            self.claims.append((row["id"], len(row["claimed"])))

    @claim_rule(30, number=NUMBERS, how=SETTLES, pause=PAUSES)
    def settle_a_claim(self, item: tuple[int, int], event: Event | None, how: str, pause: int) -> None:
        late = event is not None and how == "complete" and event.cancelled and event.vt <= self.model.now
        lapsed = event is not None and event.vt <= self.model.now
        busy = event is not None and how == "extend" and lapsed and event.kind in LIMITS
        expected = "stale" if event is None or late else "busy" if busy else "done"
        assert self.run(self.settled(how, item, timedelta(seconds=pause))) in (expected, [expected])
        if event is not None and late:
            self.model.cancel_late(event)
        elif event is not None and not busy:
            self.model_settles(how, event, pause)

    async def settled(self, how: str, item: tuple[int, int], pause: timedelta) -> object:
        if how == "fail":
            return await fail(self.queue, item, retry_in=pause)
        if how == "snooze":
            return await snooze(self.queue, item, pause)
        return await {"complete": complete, "release": release, "extend": extend}[how](self.queue, item)

    def model_settles(self, how: str, event: Event, pause: int) -> None:
        event.errors += how == "fail"
        if how == "complete":
            self.model.archive([event], "completed", None)
        elif how == "extend":
            batch = [event] if event.group is None else self.model.members(event.group)
            for held in (other for other in batch if other.held):
                held.vt = held.vt if held.cancelled else self.model.now + LEASE
                held.heartbeat = self.model.now
        elif event.cancelled:
            self.model.archive([event], "cancelled", "cancelled while running")
        elif how == "fail" and event.spent:
            self.model.archive([event], "failed", "attempts_exhausted")
        else:
            self.model.hand_back(event, counted=how == "fail", pause=0 if how == "release" else pause)

    @rule(
        6,
        number=NUMBERS,
        kind=KINDS,
        group=["g", "h"],
        commits=[True, False],
        how=["claim", "single", *SETTLES],
    )
    def step_beside_an_open_insert(self, number: int, kind: str, group: str, commits: bool, how: str) -> None:
        """Do a step beside an open transaction that has entered a group, which changes nothing before its commit."""
        if how not in ("claim", "single") and not self.standing():
            # Choose now: the step may enqueue, and would wait for a transaction that gives "g" its head.
            self.claim_something("all")
        transaction = self.other.transaction()
        self.run(transaction.start())
        identity = self.run(self.other.fetchval("select agent.enqueue($1, _group_key => $2)", kind, group))
        match how:
            case "claim":
                self.claim_all("all")
            case "single":
                self.claim_a_single_one()
            case _:
                self.settle_a_claim(number, True, how, 400)
        self.both_are_the_same()
        if commits:
            self.run(transaction.commit())
            self.model.add(Event(identity, kind, self.model.now, self.model.now, group=group))
        else:
            self.run(transaction.rollback())

    @rule(1, number=NUMBERS)
    def delete_an_event(self, number: int) -> None:
        event = self.some(number)
        self.run(self.queue.execute("select agent.delete_event($1)", event.id if event else -1))
        if event:
            self.model.fence_behind(event)
            self.model.archive([event], "completed", None)

    @rule(3, number=NUMBERS)
    def cancel_an_event(self, number: int) -> None:
        event = self.some(number)
        if event is None:
            return
        tree = [event]  # its children are left
        running = [each for each in tree if each.held and each.vt > self.model.now]
        waiting = [each for each in tree if each not in running]
        answer = self.value("select agent.cancel_job($1)", event.id)
        assert answer == ("running" if event in running else "cancelled")
        for each in running:
            if not each.cancelled and self.model.is_head(each):
                each.vt = min(each.vt, self.model.now + CANCEL_GRACE)
            each.cancelled = True
        for each in waiting:
            self.model.fence_behind(each)
        self.model.archive(waiting, "cancelled", "cancelled by surelane")

    @rule(2, key=["i", "j"], wait=PAUSES)
    def reschedule_a_job(self, key: str, wait: int) -> None:
        found = [event for event in self.model.live.values() if event.item_key == key]
        answer = self.value("select agent.reschedule_event($1, $2)", key, at(self.model.now + wait))
        running = [event for event in found if event.held and event.vt > self.model.now]
        assert answer == ("running" if running else "rescheduled" if found else None)
        for event in found if not running else []:
            self.model.fence_behind(event)
            event.vt = self.model.now + wait
            event.held, event.heartbeat, event.retrying = False, None, False
            self.model.elect(event.group)

    @rule(2, number=NUMBERS)
    def requeue_an_ended_event(self, number: int) -> None:
        if not self.model.history:
            return
        past = list(self.model.history.values())[number % len(self.model.history)]
        ended = past.event
        taken = any(event.item_key == ended.item_key is not None for event in self.model.live.values())
        moved = self.value("select array_agg(r) from agent.rerun_events($1) as r", [ended.id])
        assert moved == (None if taken else [ended.id])
        if not taken:
            del self.model.history[ended.id]
            again = self.model.again(ended, ended.id, ended.item_key)
            again.event_ts, again.claims, again.errors = ended.event_ts, ended.claims, ended.errors
            self.model.keep_for_rerun(past, again)
            self.model.add(again)

    @rule(3)
    def sweep(self) -> None:
        assert self.value("select agent.delete_expired_events()") == self.model.sweep()

    @rule(2)
    def rescue(self) -> None:
        silent = self.model.now - DEAD_FOR
        self.rescues(lambda e: e.heartbeat is not None and e.heartbeat < silent, "agent.rescue_events()")

    @rule(2)
    def let_the_worker_die(self) -> None:
        """Its session, which no lock has, is gone; the claims of the single claim are not its own."""
        introduced = "insert into agent.worker (name, kinds, version, session) values ('w1', $1, '', 0)"
        self.run(self.queue.execute(introduced, KINDS))
        self.rescue_worker()
        self.run(self.queue.execute("delete from agent.worker"))

    def rescue_worker(self) -> None:
        self.rescues(
            lambda event: event.held and event.worker == "w1",
            "rescued from agent.rescue_worker('w1', 0, '5 s', 'w2')",
        )

    def rescues(self, dead: Callable[[Event], bool], call: str) -> None:
        """Rescue the claims that stand and are dead."""
        rescued = [event for event in self.model.live.values() if event.vt > self.model.now and dead(event)]
        for event in rescued:
            event.vt = self.model.now
        assert self.value(f"select {call}") == len(rescued)
        if rescued:
            self.model.sweep_after_rescue()

    @rule(3)
    def pause_or_resume(self) -> None:
        self.pause(not self.model.paused)

    def pause(self, paused: bool) -> None:
        """Pause or resume a kind, whether it is paused or not."""
        verb = "pause" if paused else "resume"
        self.run(self.queue.execute(f"select agent.{verb}_kind('slack.parked')"))
        if paused or self.model.paused:
            self.model.paused = {"slack.parked"} if paused else set()
            self.model.free_groups()

    def both_are_the_same(self) -> None:
        rows = {row["id"]: tuple(row)[1:] for row in self.run(self.queue.fetch(LIVE))}
        for identity in (identity for identity, row in rows.items() if row[0]):
            self.adopt(identity)
        assert rows == {identity: self.expected(event) for identity, event in self.model.live.items()}
        assert {tuple(row) for row in self.run(self.queue.fetch(ENDED))} == {
            (e.id, ended.outcome, ended.reason, e.attempts, e.claims, e.errors, e.priority)
            for ended in self.model.history.values()
            for e in [ended.event]
        }
        assert not self.model.live.keys() & self.model.history.keys()
        outranked = {row["group_key"] for row in self.run(self.queue.fetch(OUTRANKED))}
        assert outranked == set(filter(self.model.outranked, self.model.heads))
        # Time alone may change who is first: then sweeps elect anew.
        assert self.model.now > self.elected_at or outranked <= self.outranked, outranked - self.outranked
        self.outranked, self.elected_at = outranked, self.model.now
        assert all(event.attempts <= event.max_attempts for event in self.model.live.values())

    def adopt(self, identity: int) -> None:
        """Take the database's choice if several members could be the head of a group."""
        group = self.model.live[identity].group if identity in self.model.live else None
        if group is not None and identity in self.model.heads[group]:
            self.model.heads[group] = [identity]

    def expected(self, event: Event) -> tuple[Any, ...]:
        heartbeat = None if event.heartbeat is None else at(event.heartbeat)
        facts = self.model.is_head(event), at(event.vt), event.attempts, event.claims, event.held
        return (*facts, heartbeat, event.retrying, event.cancelled, event.errors, event.priority)
