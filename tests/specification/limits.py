"""The slot of one limit key: claims, notes, settles and heartbeats, statement by statement (006-limit; ADR 0040).

The limit is one event at once. A transaction's writes are seen as it commits; each statement sees what is committed.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.specification.checker import Specification


class Event(NamedTuple):
    """A parked event, and the transactions that have its row locked."""

    place: str = "absent"
    """absent, waiting, running or ended."""
    lapsed: bool = False
    """Its lease has ended."""
    beat: str = ""
    """Its heartbeat has locked the row (``row``), then read the clock (``renews``, ``too_late``)."""
    settle: str = ""
    """Its settle has read ``blocked_at`` (``blocked``, ``free``)."""


class Claim(NamedTuple):
    """A claim that looks at the key, and what it has read."""

    at: str = ""
    runs: frozenset[int] = frozenset()
    """What counts as running."""
    lapsed: frozenset[int] = frozenset()
    takes: int = -1
    blocked: bool = False


class State(NamedTuple):
    """The key, its events, and its claims under way."""

    left: tuple[tuple[str, int], ...]
    events: tuple[Event, ...]
    claims: tuple[Claim, ...]
    declared: bool = False
    running: frozenset[int] = frozenset()
    """``limit_state.running``."""
    blocked: bool = False
    """``limit_state.blocked_at``: events were left waiting."""
    note: bool = False
    """A ``limit_note`` that is due."""
    later: bool = False
    """A note by which a claim looks again by itself."""


class Limit(Specification):
    """Two workers' claims under one key."""

    unfair = "insert lapse beat"
    events = 2
    workers = 2

    def start(self) -> State:
        return State(self.left, (Event(),) * self.events, (Claim(),) * self.workers)

    def put(self, s: State, i: int, **changes: Any) -> State:
        return s._replace(events=(*s.events[:i], s.events[i]._replace(**changes), *s.events[i + 1 :]))

    def locked(self, s: State, i: int) -> bool:
        e = s.events[i]
        return bool(e.beat or e.settle or any(claim.takes == i for claim in s.claims))

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        for i, e in enumerate(s.events):
            yield from self.on_event(s, i, e)
        for w, claim in enumerate(s.claims):
            for name, to, changed in self.of_claim(s, claim):
                yield f"{name} w{w}", to._replace(claims=(*to.claims[:w], changed, *to.claims[w + 1 :]))
        if not s.declared:
            yield "declare_limits", s._replace(declared=True, note=True)
            if "late_limits" in self.old:
                waiting = [i for i, e in enumerate(s.events) if e.place == "waiting"]
                to = s
                for i in waiting:
                    to = self.put(to, i, place="running")
                yield "claim_events", to
        if s.later:
            yield "due", s._replace(later=False, note=True)

    def on_event(self, s: State, i: int, e: Event) -> Iterator[tuple[str, State]]:
        if e.place == "absent" and (i == 0 or s.events[i - 1].place != "absent"):  # they are alike
            yield f"insert {i}", self.put(s, i, place="waiting")._replace(note=True)
        if e.place != "running":
            return
        # A renewed lease is longer than the claim that saw the former one end.
        seen = any(i in claim.lapsed for claim in s.claims)
        if not e.lapsed and not seen and (to := self.spend(s, "lapse")):
            yield f"lapse {i}", self.put(to, i, lapsed=True)._replace(note=True)  # a claim left that note
        yield from self.heartbeat(s, i, e)
        if e.settle:
            to = self.put(s, i, place="ended", settle="")
            yield f"settle {i} commits", to._replace(note=s.note or e.settle == "blocked")
        elif not self.locked(s, i):
            yield f"settle {i}", self.put(s, i, settle="blocked" if s.blocked else "free")

    def heartbeat(self, s: State, i: int, e: Event) -> Iterator[tuple[str, State]]:
        """``extend_leases``: a run that has lapsed by its clock is not renewed."""
        clock = "renews" if not e.lapsed or "lapsed_renewed" in self.old else "too_late"
        if not e.beat and not self.locked(s, i) and (to := self.spend(s, "beat")):
            yield (
                f"beat {i} locks",
                self.put(to, i, beat="row " + (clock if "clock_first" in self.old else "")),
            )
        elif e.beat.startswith("row"):
            yield f"extend_leases {i}", self.put(s, i, beat=e.beat.removeprefix("row ") or clock)
        elif e.beat:
            yield (
                f"extend_leases {i} commits",
                self.put(s, i, beat="", lapsed=e.lapsed and e.beat != "renews"),
            )

    def of_claim(self, s: State, claim: Claim) -> Iterator[tuple[str, State, Claim]]:
        """``hold_limited`` and ``hold_key``."""
        late = "looked_first" in self.old
        turn = not any(other.at for other in s.claims) or "no_turns" in self.old
        if not claim.at and s.note and s.declared and turn:
            yield "hold_limited", s._replace(note=late), Claim("look")
        elif claim.at == "look":
            # Of what the state lists: what ended does not count.
            runs = frozenset(i for i in s.running if s.events[i].place == "running")
            lapsed = frozenset(i for i in runs if s.events[i].lapsed)
            yield "look", s, self.decide(s, Claim("locks" if lapsed else "", runs - lapsed, lapsed))
        elif claim.at == "locks":
            yield from self.judge_lapsed(s, claim)
        elif claim.at == "read":
            renewed = frozenset(
                i for i in claim.lapsed if not s.events[i].lapsed and s.events[i].place == "running"
            )
            yield "read_again", s, self.decide(s, claim._replace(at="", lapsed=renewed))
        elif claim.at == "commit":
            to = s._replace(running=claim.runs, blocked=claim.blocked, note=s.note and not late)
            if claim.takes >= 0:
                to = self.put(to, claim.takes, place="running", lapsed=False)
                to = to._replace(running=claim.runs | {claim.takes})
            yield (
                "claim commits",
                to._replace(later=s.later or (claim.blocked and "no_second_look" not in self.old)),
                Claim(),
            )

    def judge_lapsed(self, s: State, claim: Claim) -> Iterator[tuple[str, State, Claim]]:
        """A heartbeat that is not committed yet may renew a lapsed run."""
        if "lapsed_is_free" in self.old:
            yield "locks", s, self.decide(s, claim._replace(at="", lapsed=frozenset()))
        elif any(e.beat and not e.beat.startswith("row") for e in s.events):
            # Those that it cannot lock as lapsed rows.
            kept = frozenset(i for i in claim.lapsed if self.locked(s, i) or not s.events[i].lapsed)
            yield "locks", s, self.decide(s, claim._replace(at="", lapsed=kept))
        elif "not_read_again" in self.old:
            yield "locks", s, self.decide(s, claim._replace(at="", lapsed=frozenset()))
        else:
            yield "locks", s, claim._replace(at="read")

    def decide(self, s: State, claim: Claim) -> Claim:
        """Take what waits or has lapsed and that no transaction has locked, as far as there is room."""
        if claim.at == "locks":
            return claim
        runs = claim.runs | claim.lapsed
        open_ = [
            i
            for i, e in enumerate(s.events)
            if i not in runs and (e.place == "waiting" or (e.place == "running" and e.lapsed))
        ]
        free = [i for i in open_ if not self.locked(s, i)]
        takes = free[0] if free and not runs else -1
        return Claim("commit", runs, frozenset(), takes, len(open_) > (takes >= 0))

    def broken(self, s: State) -> str:
        runs = [i for i, e in enumerate(s.events) if e.place == "running" and not e.lapsed]
        return f"events {runs} run at once" if len(runs) > 1 else ""

    def good(self, s: State) -> bool:
        """All that was stored has ended."""
        return all(e.place in ("absent", "ended") for e in s.events)
