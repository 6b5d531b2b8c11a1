"""The events of one group: claims, settles, leases, heads, rescues, pauses and cancelling (002, 005, 007, 008, 015).

Each step is a transaction. Time is what may happen: a pause ends (``due``), a lease ends (``lapse``).
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.specification.checker import Specification


class Busy(Exception):  # noqa: N818 - an answer, not an error
    """Another transaction has the row locked: the step changes nothing."""


class Event(NamedTuple):
    """A row of ``agent.event``. Its place in the order of the group is its index."""

    kind: str
    place: str = "absent"
    """absent, live, or its outcome in history."""
    ahead: bool = False
    """``vt`` is ahead: a pause, or the lease of its claim."""
    claimed_by: str = ""
    claim: int = 0
    """The number of its last claim."""
    attempts: int = 0
    head: bool = False
    retrying: bool = False
    cancelled_by: bool = False


class State(NamedTuple):
    """The group, and who works on it."""

    events: tuple[Event, ...]
    left: tuple[tuple[str, int], ...]
    """How often each fault may still happen."""
    hands: frozenset[tuple[str, int, int]] = frozenset()
    """What runs, as workers believe: worker, event, claim."""
    paused: frozenset[str] = frozenset()
    away: frozenset[str] = frozenset()
    """Workers that are being replaced."""
    locked: int = -1
    """The event that a foreign transaction has locked."""
    swept: int = -1
    """The event that a sweep has seen, and not yet locked."""
    broke: str = ""


def put(s: State, i: int, **changes: Any) -> State:
    """Change an event."""
    return s._replace(events=(*s.events[:i], s.events[i]._replace(**changes), *s.events[i + 1 :]))


class Group(Specification):
    """One group. Attributes are what configurations change."""

    unfair = "insert fail release lapse die cancel pause retire lock extend_leases"
    events = "aa"
    """Their kinds. ``l`` is limited: each of its events is claimed alone."""
    workers: Mapping[str, str] = {"w1": "a", "w2": "a"}
    """The kinds that each handles."""
    scheduled: tuple[int, ...] = ()
    """Events that are stored for a later time."""
    in_order = True
    """Events are stored in their order."""
    most = 2
    """Attempts."""
    poison = False
    """Event 0 kills its worker, and is the only one that may."""
    hangs = False
    """Handlers do not end, and heartbeats go on."""

    def start(self) -> State:
        return State(tuple(map(Event, self.events)), self.left)

    # What functions of SQL decide

    def handled(self, kind: str) -> bool:
        return any(kind in kinds for kinds in self.workers.values())

    def claimable(self, s: State, kind: str) -> bool:
        """``claimable_kinds``. A worker that is being replaced counts for 90 seconds."""
        away = s.away if "gone_at_once" in self.old else frozenset()
        here = any(kind in kinds for name, kinds in self.workers.items() if name not in away)
        return here and kind not in s.paused

    def head(self, s: State) -> int:
        return next((i for i, e in enumerate(s.events) if e.head), -1)

    def live(self, s: State) -> list[int]:
        return [i for i, e in enumerate(s.events) if e.place == "live"]

    def spent(self, e: Event) -> bool:
        return e.cancelled_by or e.attempts >= self.most

    def waits(self, s: State, i: int) -> bool:
        """Return whether later events must wait for this one."""
        e = s.events[i]
        due = e.place == "live" and not e.claimed_by and not self.spent(e) and (not e.ahead or e.retrying)
        return due and self.handled(e.kind) and e.kind not in s.paused

    def promote(self, s: State) -> State:
        members = self.live(s)
        if not members or self.head(s) >= 0:
            return s
        held = [i for i in members if s.events[i].claimed_by]
        if s.locked in held:
            raise Busy
        known = [i for i in members if self.claimable(s, s.events[i].kind)]
        preferred = members if "elected_by_order" in self.old else known or members
        preferred = [i for i in preferred if i != s.locked] or preferred
        retries = [i for i in preferred if s.events[i].retrying]
        visible = [i for i in preferred if not s.events[i].ahead]
        return put(s, (held or retries or visible or preferred)[0], head=True)

    def reelect(self, s: State) -> State:
        h = self.head(s)
        return self.promote(put(s, h, head=False) if h >= 0 else s)

    def fence_groups(self, s: State) -> tuple[State, bool]:
        """Return the held members of a lapsed head, and whether the group is left alone."""
        h = self.head(s)
        members = [i for i in self.live(s) if i != h and s.events[i].claimed_by]
        for i in members:
            if i != s.locked and "held_members_stay" not in self.old:
                spent = s.events[i].cancelled_by or "members_spent" in self.old
                s = put(s, i, claimed_by="", ahead=False, attempts=s.events[i].attempts - (not spent))
        if s.locked in members and "unfenced_claims" not in self.old:
            return s, True
        e = s.events[h]
        waiting = [i for i in self.live(s) if i not in (h, *members) and self.waits(s, i)]
        first = [] if "released_overtaken" in self.old else [i for i in waiting if i < h and i != s.locked]
        retry = [] if "lapsed_heads_stay" in self.old else [i for i in waiting if s.events[i].retrying]
        if not retry + first or e.cancelled_by:
            return s, False
        return self.reelect(put(s, h, claimed_by="", ahead=False, attempts=e.attempts - 1)), True

    def end(self, s: State, i: int, outcome: str) -> State:
        """``end_events``, with the trigger that elects the next head."""
        return self.promote(put(s, i, place=outcome, head=False, claimed_by="", ahead=False, retrying=False))

    def free_groups(self, s: State) -> State:
        h = self.head(s)
        if h < 0 or s.events[h].claimed_by or h == s.locked:
            return s
        e = s.events[h]
        others = [s.events[i] for i in self.live(s) if i != h and self.claimable(s, s.events[i].kind)]
        wanting = not self.claimable(s, e.kind) and bool(others)
        if "idle_heads_stay" not in self.old and not e.retrying:
            wanting |= any(o.retrying or (e.ahead and not o.ahead) for o in others)
        return self.reelect(s) if wanting else s

    # Steps

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        for name, step in self.possible(s):
            try:
                if (to := step()) is not None:
                    yield name, to
            except Busy:
                continue

    def possible(self, s: State) -> Iterator[tuple[str, Any]]:
        for i, e in enumerate(s.events):
            if e.place == "absent" and (not self.in_order or i == len(self.events) - 1 - self.absent(s)):
                yield f"insert {i}", lambda i=i: self.insert(s, i)
            elif e.place == "live":
                yield from self.on_event(s, i, e)
        for w in self.workers:
            yield from self.of_worker(s, w)
        for w, i, claim in sorted(s.hands):
            yield from self.of_hand(s, w, i, claim)
        yield "free_groups", lambda: self.free_groups(s)
        if s.swept >= 0:
            yield "sweep", lambda: self.sweep(s)
        for kind in sorted(s.paused):
            yield (
                f"resume_kind {kind}",
                lambda kind=kind: self.free_groups(s._replace(paused=s.paused - {kind})),
            )
        yield "pause_kind a", lambda: self.pause(s)
        if s.locked >= 0:
            yield "unlock", lambda: s._replace(locked=-1)

    def absent(self, s: State) -> int:
        return sum(e.place == "absent" for e in s.events) - 1

    def on_event(self, s: State, i: int, e: Event) -> Iterator[tuple[str, Any]]:
        if e.ahead and not e.claimed_by:
            yield f"due {i}", lambda: put(s, i, ahead=False)
        if e.cancelled_by and e.claimed_by and e.ahead and e.head:
            yield f"grace {i}", lambda: put(s, i, ahead=False)
        if e.head and not e.ahead and e.attempts and self.spent(e):
            yield f"look {i}", lambda: s._replace(swept=i)
        if not e.cancelled_by:
            yield f"cancel_job {i}", lambda: self.cancel(s, i)
        if not e.head and s.locked < 0:
            yield f"lock {i}", lambda: (to := self.spend(s, "lock")) and to._replace(locked=i)

    def of_worker(self, s: State, w: str) -> Iterator[tuple[str, Any]]:
        mine = [hand for hand in s.hands if hand[0] == w]
        if w in s.away:
            yield f"announce_worker {w}", lambda: self.free_groups(s._replace(away=s.away - {w}))
            return
        yield f"claim_events {w}", lambda: self.claim_events(s, w)
        if not mine:
            yield (
                f"retire_worker {w}",
                lambda: (to := self.spend(s, "retire")) and to._replace(away=s.away | {w}),
            )
        else:
            yield f"extend_leases {w}", lambda: self.extend_leases(s, w)
            yield f"lapse {w}", lambda: (to := self.spend(s, "lapse")) and self.lapse(to, w)
        if any(i == 0 or not self.poison for _, i, _ in mine):
            yield f"die {w}", lambda: self.die(s, w)

    def of_hand(self, s: State, w: str, i: int, claim: int) -> Iterator[tuple[str, Any]]:
        if not self.hangs:
            for outcome in ("complete", "fail", "release"):
                yield f"{outcome} {w} {i}", lambda outcome=outcome: self.settle(s, w, i, claim, outcome)

    def insert(self, s: State, i: int) -> State:
        s = put(s, i, place="live", ahead=i in self.scheduled)
        h = self.head(s)
        return self.promote(s) if h < 0 else self.reelect(s) if self.head_yields(s, h, i) else s

    def head_yields(self, s: State, h: int, i: int) -> bool:
        head, new = s.events[h], s.events[i]
        known = [self.claimable(s, e.kind) for e in (head, new)]
        if head.claimed_by or "elected_by_order" in self.old:
            return False
        return known[1] if known[0] != known[1] else not head.retrying and head.ahead and not new.ahead

    def claim_events(self, s: State, w: str) -> State | None:
        h = self.head(s)
        if h < 0 or h == s.locked:
            return None
        e, again = s.events[h], s.events[h].retrying
        if e.ahead or self.spent(e) or e.kind not in self.workers[w] or e.kind in s.paused:
            return None
        if e.claimed_by:
            s, left = self.fence_groups(s)
            taken = [h]
            if left:
                return s
        else:
            taken = [h, *(self.take_members(s, w, h) if e.kind != "l" else [])]
        for i in taken:
            e = s.events[i]
            s = put(
                s, i, claimed_by=w, ahead=True, claim=e.claim + 1, attempts=e.attempts + 1, retrying=False
            )
            s = s._replace(hands=s.hands | {(w, i, e.claim + 1)})
        return s._replace(broke=self.overtaken(s, taken, again))

    def take_members(self, s: State, w: str, h: int) -> list[int]:
        """Members join up to the first that waits and that this claim may not take."""
        taken: list[int] = []
        for i in self.live(s):
            e = s.events[i]
            if i in (h, s.locked) or e.claimed_by:
                continue
            if (
                not e.ahead
                and e.kind in self.workers[w]
                and e.kind not in s.paused
                and e.kind != "l"
                and not self.spent(e)
            ):
                taken.append(i)
            elif self.waits(s, i) and "skipped_members" not in self.old:
                break
        return taken

    def overtaken(self, s: State, taken: list[int], again: bool) -> str:
        last = max(taken if self.in_order else taken[1:], default=-1)
        passed = [
            i
            for i in self.live(s)
            if self.waits(s, i) and i != s.locked and (i < last or (s.events[i].retrying and not again))
        ]
        return f"{taken} overtook {passed}" if passed else ""

    def extend_leases(self, s: State, w: str) -> State:
        for _, i, claim in [hand for hand in s.hands if hand[0] == w]:
            e = s.events[i]
            if e.place == "live" and e.claimed_by and e.claim == claim:
                s = put(s, i, ahead=e.ahead or not e.cancelled_by or "cancelled_extended" in self.old)
        return s

    def lapse(self, s: State, w: str) -> State:
        """The worker froze, or lost the network."""
        for i in self.live(s):
            if s.events[i].claimed_by == w:
                s = put(s, i, ahead=False)
        return s

    def die(self, s: State, w: str) -> State | None:
        """A worker dies, and ``rescue_worker`` ends its claims."""
        to = self.spend(s, "die")
        return to and self.lapse(to._replace(hands=frozenset(hand for hand in to.hands if hand[0] != w)), w)

    def settle(self, s: State, w: str, i: int, claim: int, outcome: str) -> State | None:
        if outcome != "complete":
            spent = self.spend(s, outcome)
            if spent is None:
                return None
            s = spent
        e = s.events[i]
        stands = (bool(e.claimed_by) or "no_standing_claim" in self.old) and (
            e.claim == claim or "no_number" in self.old
        )
        if i == s.locked:
            raise Busy
        s = s._replace(hands=s.hands - {(w, i, claim)})
        if e.place != "live" or not stands:
            return s
        if (e.claimed_by, e.claim) != (w, claim):
            s = s._replace(broke=f"{w} settled event {i}, whose claim does not stand")
        if e.cancelled_by and (outcome != "complete" or not e.ahead):
            if e.head and not e.ahead:
                s = self.fence_groups(s)[0]
            return self.end(s, i, "cancelled")
        if outcome == "complete" or (outcome == "fail" and self.spent(e)):
            return self.end(s, i, "completed" if outcome == "complete" else "failed")
        counted = outcome == "fail"
        return self.reelect(
            put(s, i, claimed_by="", ahead=counted, retrying=counted, attempts=e.attempts - (not counted))
        )

    def cancel(self, s: State, i: int) -> State | None:
        to, e = self.spend(s, "cancel"), s.events[i]
        if to is None or i == s.locked:
            return None
        if e.claimed_by and e.ahead:
            return put(to, i, cancelled_by=True)
        if e.claimed_by and e.head:
            to, left = self.fence_groups(to)
            if left:
                return to
        return self.end(to, i, "cancelled")

    def sweep(self, s: State) -> State:
        """``sweep_exhausted``, once it has locked what it saw: it looks again."""
        i, e = s.swept, s.events[s.swept]
        s = s._replace(swept=-1)
        sound = e.place == "live" and e.head and not e.ahead and self.spent(e)
        if e.place != "live" or i == s.locked or not (sound or "swept_as_seen" in self.old):
            return s
        if e.ahead:
            return s._replace(broke=f"event {i} expired while it ran")
        s, left = self.fence_groups(s)
        return s if left else self.end(s, i, "cancelled" if e.cancelled_by else "expired")

    def pause(self, s: State) -> State | None:
        to = self.spend(s, "pause")
        return to and self.free_groups(to._replace(paused=frozenset("a")))

    # Promises

    def broken(self, s: State) -> str:
        if s.broke:
            return s.broke
        holders = {s.events[i].claimed_by for i in self.live(s)} - {""}
        if len(holders) > 1:
            return f"the group is in the hands of {sorted(holders)}"
        if sum(s.events[i].head for i in self.live(s)) != bool(self.live(s)):
            return "the group does not have one head"
        innocent = self.poison and any(
            e.attempts and not e.claimed_by and e.place == "live" for e in s.events[1:]
        )
        return "an innocent event has lost an attempt" if innocent else ""

    def good(self, s: State) -> bool:
        """All that can be handled has ended. Of handlers that hang: heads that were cancelled (ADR 0047)."""
        left = [s.events[i] for i in self.live(s)]
        return not any((e.cancelled_by and e.head) if self.hangs else self.handled(e.kind) for e in left)
