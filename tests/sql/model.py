"""Model the queue's SQL in plain Python, without locks, lanes or indexes. Times are seconds."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

LEASE = 600
MAX_ATTEMPTS = 3
MAX_AGE = 3600
CANCEL_GRACE = 10
DEAD_FOR = 300
AT_ONCE = 2
LIMITS = {"slack.few": 10_000, "slack.two": AT_ONCE}
"""How many events of a kind may run at once. Each of them is a run, so a claim takes it alone."""


@dataclass
class Event:
    """A live event."""

    id: int
    kind: str
    event_ts: int
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

    @property
    def order(self) -> tuple[int, int]:
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

    # Groups

    def members(self, group: str) -> list[Event]:
        return sorted(
            (event for event in self.live.values() if event.group == group), key=lambda event: event.order
        )

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
        return not head.retrying and head.vt > newcomer.vt

    def fence(self, group: str | None) -> bool:
        """Return the claimed members of a lapsed group to the queue, without counting the attempt.

        Also its head, if a retry holds it back. Return whether one does.
        """
        if group is None:
            return False
        for event in self.members(group):
            if event.held and not self.is_head(event):
                event.held, event.heartbeat, event.vt = False, None, self.now
                event.attempts -= 0 if event.cancelled else 1
        head = self.live[self.heads[group][0]]
        if not self.is_held_back(head):
            return False
        head.held, head.heartbeat, head.vt = False, None, self.now
        head.attempts -= 1
        self.elect(group)
        return True

    def is_held_back(self, head: Event) -> bool:
        """Return whether the claim of a head lapsed while another event of its group waits for a retry."""
        return (
            head.group is not None
            and head.held
            and head.vt <= self.now
            and not head.cancelled
            and any(
                event.retrying and event is not head and event.kind not in self.paused
                for event in self.members(head.group)
            )
        )

    def fence_behind(self, event: Event) -> None:
        """Fence the members behind a lapsed head that leaves or moves."""
        if event.held and event.vt <= self.now and self.is_head(event):
            self.fence(event.group)

    def free_groups(self) -> None:
        """Elect another head where an idle one is of a paused kind, held back by a retry, or later than a member."""
        for group in list(self.heads):
            head = self.live[self.heads[group][0]]
            others = [
                event for event in self.members(group) if event is not head and event.kind not in self.paused
            ]
            later = head.vt > self.now
            if not head.held and any(
                head.kind in self.paused
                or (not head.retrying and (other.retrying or (later and other.vt < head.vt)))
                for other in others
            ):
                self.elect(group)

    # The steps of events

    def add(self, event: Event) -> None:
        self.live[event.id] = event
        if event.group is not None and (
            event.group not in self.heads or self.yields(self.live[self.heads[event.group][0]], event)
        ):
            self.heads[event.group] = [event.id]

    def archive(self, events: Iterable[Event], outcome: str, reason: str | None) -> None:
        for event in list(events):
            self.remove(event)
            self.history[event.id] = Ended(event, outcome, reason)

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
        running = sum(
            event.kind == kind and event.held and event.vt > self.now for event in self.live.values()
        )
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
        last = max((event.order for event in taken[1:]), default=(-1, -1))
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
        spent = list(
            self._heads(lambda head: head.vt <= self.now and head.attempts > 0 and head.spent and known(head))
        )
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
