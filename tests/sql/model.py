"""Model the queue's SQL in plain Python, without locks, lanes or indexes. Times are seconds."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile

LEASE = 600
MAX_ATTEMPTS = 3
MAX_AGE = 3600
CANCEL_GRACE = 10
DEAD_FOR = 300
AT_ONCE = 2
MANY_DAYS = 3650 * 24 * 3600
"""The pause of an event whose waits have no time."""
HOOKED = {"slack.calm"}
"""Kinds that have a failure hook."""
LIMITS = {"slack.few": 10_000, "slack.two": AT_ONCE}
"""How many events of a kind may run at once. Each of them is a run, so a claim takes it alone."""


@dataclass
class Step:
    """A step or a wait of an event."""

    sort: str
    stored_at: int
    due: int | None = None
    done: bool = False
    outcome: str | None = None
    """How the child ended whose end a wait took."""


@dataclass
class Signal:
    """A value that was sent to an event."""

    name: str
    outcome: str | None = None
    taken_by: int | None = None


def is_child(name: str) -> bool:
    """Return whether a wait or a signal is of a child."""
    return name.startswith("child ")


@dataclass
class Event:
    """A live event."""

    id: int
    kind: str
    event_ts: float
    vt: int
    item_key: str | None = None
    dedupe_key: str | None = None
    group: str | None = None
    max_attempts: int = MAX_ATTEMPTS
    priority: int = 1
    attempts: int = 0
    claims: int = 0
    held: bool = False
    worker: str | None = None
    """The worker whose claim stands; none for the documented single claim."""
    heartbeat: int | None = None
    retrying: bool = False
    cancelled: bool = False
    errors: int = 0
    steps: dict[tuple[str, int], Step] = field(default_factory=dict)
    signals: list[Signal] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    parent: int | None = None
    """The event that awaits this one, in its wait ``awaited``."""
    awaited: str = ""

    @property
    def order(self) -> tuple[float, int]:
        """Return its place in the order of its group."""
        return self.event_ts, self.id

    @property
    def spent(self) -> bool:
        """Return whether its attempts are exhausted."""
        return self.cancelled or self.attempts >= self.max_attempts


@dataclass
class Ended:
    """An event in history."""

    event: Event
    outcome: str
    reason: str | None


@dataclass
class Model:
    """The whole queue. ``heads`` maps a group to its head, and to members that could be the head instead."""

    now: int = 0
    live: dict[int, Event] = field(default_factory=dict)
    history: dict[int, Ended] = field(default_factory=dict)
    heads: dict[str, list[int]] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    hooked: list[tuple[int, str]] = field(default_factory=list)
    """The events for whose ends a failure hook is called, and how they ended."""

    # Groups

    def members(self, group: str) -> list[Event]:
        return sorted((event for event in self.live.values() if event.group == group), key=lambda e: e.order)

    def is_head(self, event: Event) -> bool:
        return event.group is None or self.heads[event.group][0] == event.id

    def elect(self, group: str | None) -> None:
        """Elect the head of a group anew."""
        if group is None:
            return
        members = self.members(group)
        if not members:
            self.heads.pop(group, None)
            return
        claimable = [event for event in members if event.kind not in self.paused] or members
        best = (
            [event for event in members if event.held][:1]
            or [event for event in claimable if event.retrying][:1]
            or [event for event in claimable if event.vt <= self.now][:1]
            or [event for event in claimable if event.vt == min(other.vt for other in claimable)]
        )
        self.heads[group] = [event.id for event in best]
        best[0].vt = max(best[0].vt, self.now)

    def yields(self, head: Event, newcomer: Event) -> bool:
        if head.held:
            return False
        if (head.kind in self.paused) != (newcomer.kind in self.paused):
            return head.kind in self.paused
        if head.retrying or head.vt > self.now:
            return not head.retrying and head.vt > newcomer.vt
        return newcomer.vt <= self.now and newcomer.order < head.order

    def fence(self, group: str | None) -> bool:
        """Return the claimed members of a lapsed group to the queue, without counting the attempt. Cancelled ones end.

        Also its head, if a retry holds it back. Return whether one does.
        """
        if group is None:
            return False
        held = [event for event in self.members(group) if event.held and not self.is_head(event)]
        for event in held:
            event.held, event.heartbeat, event.vt = False, None, self.now
            event.attempts -= 0 if event.cancelled else 1
        self.archive([event for event in held if event.cancelled], "cancelled", "cancelled while running")
        head = self.live[self.heads[group][0]]
        if not self.is_held_back(head):
            return False
        head.held, head.heartbeat, head.vt = False, None, self.now
        head.attempts -= 1
        self.elect(group)
        return True

    def is_held_back(self, head: Event) -> bool:
        """Return whether the claim of a head lapsed while another event of its group comes first."""
        return (
            head.group is not None
            and head.held
            and head.vt <= self.now
            and not head.cancelled
            and any(
                event is not head
                and event.kind not in self.paused
                and (event.retrying or (event.claims > 0 and self.is_due(event) and event.order < head.order))
                for event in self.members(head.group)
            )
        )

    def cancel_late(self, event: Event) -> None:
        """End a cancelled event whose claim lapsed before it was settled."""
        self.fence_behind(event)
        self.archive([event], "cancelled", "cancelled while running")

    def fence_behind(self, event: Event) -> None:
        """Fence the members behind a lapsed head that leaves or moves."""
        if event.held and event.vt <= self.now and self.is_head(event):
            self.fence(event.group)

    def outranked(self, group: str) -> bool:
        """Return whether a member should lead a group instead of its idle head."""
        head = self.live[self.heads[group][0]]
        members = [event for event in self.members(group) if event is not head]
        if head.held or not members:
            return False
        if any(event.held for event in members):
            return True
        claimable = [event for event in members if event.kind not in self.paused]
        if head.kind in self.paused and claimable:
            return True
        among = members if head.kind in self.paused else claimable
        earlier = [event for event in among if event.order < head.order]
        if head.retrying:
            return any(event.retrying for event in earlier)
        if any(event.retrying for event in among):
            return True
        if head.vt <= self.now:
            return any(event.vt <= self.now for event in earlier)
        return any(event.vt < head.vt for event in among)

    def free_groups(self) -> None:
        """Elect another head where a member outranks it."""
        for group in filter(self.outranked, list(self.heads)):
            self.elect(group)

    # The steps of events

    def add(self, event: Event) -> None:
        self.live[event.id] = event
        if event.group is not None and (
            event.group not in self.heads or self.yields(self.live[self.heads[event.group][0]], event)
        ):
            self.heads[event.group] = [event.id]

    def archive(self, events: Iterable[Event], outcome: str, reason: str | None) -> None:
        ending = list(events)
        for event in ending:
            self.remove(event)
            self.history[event.id] = Ended(event, outcome, reason)
            if outcome in ("failed", "expired") and event.kind in HOOKED:
                self.hooked.append((event.id, outcome))
        for event in ending:
            if event.parent is not None:
                # A parent that ends in the same statement is told, too, for nothing.
                together = {other.id: other for other in ending}
                self.send((self.live | together).get(event.parent), event.awaited, outcome)

    def remove(self, event: Event) -> None:
        """Remove an event from the queue. If it was a head, elect another."""
        was_head = self.is_head(event)
        del self.live[event.id]
        if was_head:
            self.elect(event.group)

    def hand_back(self, event: Event, *, counted: bool, pause: int) -> None:
        event.held, event.heartbeat, event.retrying = False, None, counted
        event.attempts -= 0 if counted else 1
        event.vt = self.now + pause
        self.elect(event.group)

    def claimable(self, kinds: Collection[str]) -> list[Event]:
        """Return the heads that a claim of some kinds may take."""
        return [
            event
            for event in self.live.values()
            if event.kind in kinds and self.is_due(event) and self.is_head(event)
        ]

    def is_due(self, event: Event) -> bool:
        """Return whether a worker may start it now, if order and limits allow."""
        return event.vt <= self.now and not event.spent and event.kind not in self.paused

    def room(self, kind: str) -> int:
        """Return how many more events of a kind may run. A claim that lapsed does not count."""
        running = sum(e.kind == kind and e.held and e.vt > self.now for e in self.live.values())
        return max(0, LIMITS[kind] - running)

    def claim(self, head: Event, kinds: Collection[str], *, beats: bool) -> list[Event]:
        """Claim a head, and with it the members of its group that may join. Return the claimed events."""
        batch = [head]
        if head.held:
            if self.fence(head.group):
                return []
        elif head.group is not None and head.kind not in LIMITS:
            waiting = [event for event in self.members(head.group) if event is not head and self.waits(event)]
            batch += takewhile(lambda event: self.may_join(event, kinds), waiting)
        for event in batch:
            event.attempts += 1
            event.claims += 1
            event.vt, event.held, event.retrying = self.now + LEASE, True, False
            event.worker, event.heartbeat = ("w1", self.now) if beats else (None, None)
        return batch

    def may_join(self, event: Event, kinds: Collection[str]) -> bool:
        return event.vt <= self.now and event.kind in kinds and event.kind not in LIMITS

    def waits(self, event: Event) -> bool:
        """Return whether later events of its group wait for it: it may start now, or waits for a retry."""
        due = self.is_due(event) or (event.retrying and not event.spent and event.kind not in self.paused)
        return due and not event.held

    def overtaken(self, group: str | None, taken: list[Event], *, again: bool) -> list[Event]:
        """Return what a claim of a group overtook. ``again``: its head waited for a retry."""
        if group is None:
            return []
        last = max((event.order for event in taken[1:]), default=(-1.0, -1))
        return [
            event
            for event in self.members(group)
            if self.waits(event) and (event.order < last or (event.retrying and not again))
        ]

    def standing(self, identity: int, claim: int) -> Event | None:
        """Return the event of a claim that still stands."""
        event = self.live.get(identity)
        return event if event is not None and event.held and event.claims == claim else None

    def sweep(self) -> int:
        """Expire exhausted and old events; return their number."""
        before = len(self.live)
        swept = True
        while swept:
            self.free_groups()
            swept = self._sweep_spent() + self._sweep_old() > 0
        return before - len(self.live)

    def sweep_after_rescue(self) -> None:
        """Expire exhausted events, except where the database knows no maximum of theirs."""
        self._sweep_spent(lambda event: event.cancelled or event.max_attempts < MAX_ATTEMPTS)

    def _sweep_spent(self, known: Callable[[Event], bool] = lambda _: True) -> int:
        spent = list(self._heads(lambda e: e.vt <= self.now and e.attempts > 0 and e.spent and known(e)))
        for event in spent:
            self.fence(event.group)
        spent = [event for event in spent if self.is_head(event)]
        self.archive((event for event in spent if event.cancelled), "cancelled", "cancelled while running")
        self.archive((event for event in spent if not event.cancelled), "expired", "attempts_exhausted")
        return len(spent)

    def _sweep_old(self) -> int:
        def old(event: Event) -> bool:
            return not event.held and event.vt < self.now - MAX_AGE and event.kind not in self.paused

        heads = list(self._heads(old))
        members = [
            event
            for head in heads
            if head.group
            for event in self.members(head.group)
            if event is not head and old(event)
        ]
        self.archive([*members, *heads], "expired", "too_old")
        return len(members) + len(heads)

    def _heads(self, wanted: Callable[[Event], bool]) -> Iterator[Event]:
        return (
            event
            for event in self.live.values()
            if event.kind not in self.paused and self.is_head(event) and wanted(event)
        )

    # Durable handlers

    def send(self, event: Event | None, name: str, outcome: str | None = None) -> None:
        """Send a signal. An event that is suspended in a wait of that name becomes visible."""
        if event is None:
            return
        event.signals.append(Signal(name, outcome))
        waits = any(
            key[0] == name and step.sort == "wait" and not step.done for key, step in event.steps.items()
        )
        if waits and not event.held and event.vt > self.now and event.id in self.live:
            event.vt = self.now
            self.elect(event.group)

    def progress(self, event: Event) -> None:
        """Count attempts anew."""
        event.attempts = min(event.attempts, 1)

    def take(self, event: Event, name: str, nth: int, timeout: int | None) -> str:
        """Take the oldest signal for a wait, or end it if its time has passed."""
        step = event.steps.get((name, nth))
        if step is not None and step.done:
            return "done"
        waiting = [signal for signal in event.signals if signal.name == name and signal.taken_by is None]
        due = step.due if step is not None and step.due is not None else timeout and self.now + timeout
        if not waiting and (due is None or due > self.now):
            return "pending"
        outcome = None
        if waiting:
            waiting[0].taken_by, outcome = nth, waiting[0].outcome
        if step is None:
            step = event.steps[name, nth] = Step("wait", self.now, timeout and self.now + timeout)
        step.done, step.stored_at, step.outcome = True, self.now, outcome
        self.progress(event)
        return "done"

    def suspend(self, event: Event, waits: list[tuple[str, str, int, int | None]], *, blocking: bool) -> None:
        """Put a claimed event off until the first of its waits ends."""
        new = False
        for sort, name, nth, seconds in waits:
            due = None if seconds is None else self.now + seconds
            known = event.steps.get((name, nth))
            if known is None:
                event.steps[name, nth], new = Step(sort, self.now, due), True
            elif sort == "step" and not known.done:
                known.due = due
        dues = [due for _, name, nth, _ in waits if (due := event.steps[name, nth].due) is not None]
        sent = {signal.name for signal in event.signals if signal.taken_by is None}
        ready = any(sort == "wait" and name in sent for sort, name, _, _ in waits)
        until = self.now if ready else min(dues, default=self.now + MANY_DAYS)
        event.vt, event.held, event.heartbeat = max(until, self.now), False, None
        event.attempts, event.retrying = 0 if new else max(event.attempts - 1, 0), blocking
        self.elect(event.group)

    def ended_child(self, parent: Event, name: str) -> Ended | None:
        """Return a completed child in history that its parent was not told of."""
        found = [
            ended
            for ended in self.history.values()
            if (ended.event.parent, ended.event.awaited, ended.outcome) == (parent.id, name, "completed")
        ]
        return found[-1] if found else None

    def continue_anew(self, event: Event, successor: int) -> None:
        """End an event, and let its successor take its place."""
        parent, event.parent = event.parent, None
        self.archive([event], "completed", None)
        anew = self.again(event, successor, event.item_key)
        anew.signals = [each for each in event.signals if each.taken_by is None and not is_child(each.name)]
        event.signals = [each for each in event.signals if each not in anew.signals]
        if event.group is not None:
            first = min((other.event_ts for other in self.members(event.group)), default=self.now)
            anew.event_ts = min(self.now, first - 1e-6)
        anew.parent, anew.awaited = parent, event.awaited
        self.add(anew)
        if not self.is_head(anew) and not self.live[self.heads[anew.group or ""][0]].held:
            self.elect(anew.group)

    def again(self, old: Event, identity: int, key: str | None) -> Event:
        """Return an event that does what an ended one did."""
        again = Event(identity, old.kind, self.now, self.now, key, None, old.group, old.max_attempts)
        again.priority = old.priority
        return again

    def keep_for_rerun(self, ended: Ended, again: Event) -> None:
        """Give an event that runs again what its stored steps let it go on after."""
        again.tags = ended.event.tags
        if ended.outcome == "completed":
            return
        again.steps = {
            key: step
            for key, step in ended.event.steps.items()
            if not (is_child(key[0]) and step.outcome not in (None, "completed"))
        }
        again.signals = [
            signal
            for signal in ended.event.signals
            if not is_child(signal.name) or signal.outcome == "completed"
        ]

    def fork(self, ended: Ended, start: tuple[str, int] | None, again: Event) -> None:
        """Add the new event of an ended one, with the steps before ``start``."""
        if start is not None:
            cut = ended.event.steps[start].stored_at
            again.steps = {
                key: replace(step)
                for key, step in ended.event.steps.items()
                if step.stored_at < cut and (step.done or step.sort == "sleep")
            }
            again.signals = [
                Signal(signal.name)
                for signal in ended.event.signals
                if signal.taken_by is None and not is_child(signal.name)
            ]
        self.add(again)
