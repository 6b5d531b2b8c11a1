"""One worker's sessions, its claims on the way, and who rescues them (014-session, 008-sweep; ADR 0035 and 0080).

No lease ends here: what a worker's death or a lost answer leaves behind must be found without that. Two times are
taken for granted. A killed process starts again once the server has seen its connections end. A claim over a connection
that its worker has replaced ends before the grace of the next session.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.specification.checker import Specification

Backend = tuple[int, int]
"""A connection on the server: the session whose lock it holds, and whether it is the first or the second of it."""
POOL: Backend = (0, 0)
"""A connection without a session."""
NONE: Backend = (-1, 0)


class State(NamedTuple):
    """One event, its worker, and what the server knows of the worker."""

    left: tuple[tuple[str, int], ...]
    claimed: bool = False
    ended: bool = False
    claim: int = 0
    by: int = 0
    """The session over which the claim was made."""
    hand: int = 0
    """The claim that the process runs."""
    alive: bool = True
    starts: bool = True
    """The process has had no session yet."""
    known: frozenset[Backend] = frozenset()
    """The connections that the process has."""
    locks: frozenset[Backend] = frozenset()
    """Those that the server has, each with the session's lock."""
    session: int = 0
    """``agent.worker.session``; 0: the worker is not on the list."""
    died: bool = False
    keys: int = 0
    sent: Backend = NONE
    """Where a claim is under way."""
    answer: Backend = NONE
    """Where its answer is under way."""
    unknown: int = 0
    """Looks for unknown claims that the process still has to take: at once, and late."""
    saw: frozenset[int] | None = None
    """The locks that a watcher has read, where it reads them first."""
    lost: int = 0
    """The session that a watcher has seen lost."""
    broke: str = ""


class Sessions(Specification):
    """A worker that can be cut off, killed, frozen between two statements, and stopped."""

    unfair = "cut kill restart stop refuse join_session claim_events stays"
    half_open = False
    """The server may believe forever in a connection that is lost."""

    def start(self) -> State:
        return State(self.left)

    def is_open(self, s: State, session: int) -> bool:
        return any(key == session for key, _ in s.locks)

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        if s.alive:
            yield from self.of_process(s)
        elif not s.locks and (to := self.spend(s, "restart")):
            yield "restart", to._replace(alive=True, starts=True)
        yield from self.of_server(s)
        yield from self.of_watcher(s)
        for fault, step in (("cut", self.cut), ("kill", self.kill), ("stop", self.stop)):
            if s.alive and s.known and (to := self.spend(s, fault)):
                yield fault, step(to)

    # The process

    def of_process(self, s: State) -> Iterator[tuple[str, State]]:
        first = (s.keys, 1)
        if not s.known:
            yield from self.open_session(s)
        elif "join" in dict(s.left) and s.known == {first} and (to := self.spend(s, "join")):
            # It may have lost the first connection by the time this statement runs.
            yield "join_session", to._replace(known=to.known | {(s.keys, 2)})
        if (
            first in s.known
            and s.sent == s.answer == NONE
            and not s.claimed
            and not s.ended
            and s.unknown < 2
        ):
            joined = sorted(backend for backend in s.known if backend == first or backend in s.locks)
            for backend in [POOL] if "claims_elsewhere" in self.old else joined:
                yield f"claim_events {backend}", s._replace(sent=backend)
        if s.answer != NONE and (s.answer in s.known or s.answer == POOL):
            yield "receive", s._replace(hand=s.claim, answer=NONE)
        if s.unknown and first in s.known and "kept_claims" not in self.old:
            yield from self.release_unknown(s)
        if s.hand and s.known:
            ends = s.claimed and s.claim == s.hand
            yield "settle", s._replace(hand=0, ended=s.ended or ends, claimed=s.claimed and not ends)
            if to := self.spend(s, "refuse"):
                yield "refuse", to._replace(hand=0) if "refused_dropped" in self.old else to

    def open_session(self, s: State) -> Iterator[tuple[str, State]]:
        """Also introduces the worker. A process that starts ends its predecessor's claims."""
        if "fixed_key" in self.old and s.locks:
            return
        key = 1 if "fixed_key" in self.old else s.keys + 1
        to = s._replace(
            keys=key, known=frozenset({(key, 1)}), locks=s.locks | {(key, 1)}, session=key, died=False
        )
        ends = s.starts and not self.is_open(s, s.session) and "predecessor_kept" not in self.old
        to = to._replace(starts=False, claimed=s.claimed and not ends, unknown=0 if s.starts else 2)
        yield "open_session", to

    def release_unknown(self, s: State) -> Iterator[tuple[str, State]]:
        """At once, with no claim under way, and late: once the server has ended the former connection."""
        late = s.unknown == 1
        if late and s.sent != NONE and s.sent not in s.known:
            return
        mine = late and s.by == s.keys and "without_moment" not in self.old
        to = s._replace(unknown=0 if "released_once" in self.old else s.unknown - 1)
        if s.claimed and s.claim != s.hand and not mine:
            broke = "a claim whose answer is under way is released" if s.answer in s.known else ""
            to = to._replace(claimed=False, broke=broke)
        yield "release_unknown", to

    def cut(self, s: State) -> State:
        """The process loses its connections. The server does not know yet."""
        return s._replace(known=frozenset(), answer=NONE)

    def kill(self, s: State) -> State:
        return self.cut(s)._replace(alive=False, hand=0, unknown=0)

    def stop(self, s: State) -> State:
        """It ends. ``retire_worker`` keeps its row while claims stand: a foreign lock kept it from settling."""
        stays = s.claimed and "retires_anyway" not in self.old
        return self.kill(s)._replace(session=s.session if stays else 0, locks=frozenset(), sent=NONE)

    # The server

    def of_server(self, s: State) -> Iterator[tuple[str, State]]:
        if s.sent in s.locks or s.sent == POOL:
            to = s._replace(sent=NONE)
            if not s.claimed and not s.ended:
                broke = f"a claim over {s.sent} commits after its worker was taken for dead" if s.died else ""
                to = to._replace(claimed=True, claim=s.claim + 1, by=s.sent[0], broke=broke)
                to = to._replace(answer=s.sent if s.alive and (s.sent in s.known or s.sent == POOL) else NONE)
            yield "commit", to
        for backend in sorted(s.locks):
            if backend not in s.known or "cut" in dict(s.left):
                gone = s._replace(locks=s.locks - {backend}, sent=NONE if s.sent == backend else s.sent)
                if backend not in s.known:
                    yield f"{'stays' if self.half_open else 'ends'} {backend}", gone
                elif to := self.spend(gone, "cut"):
                    yield f"cut {backend}", to  # seen by the server first
        for backend in sorted(s.known - s.locks):
            if backend[1] == 1:
                yield f"notice {backend}", self.cut(s)._replace(sent=s.sent if s.sent in s.locks else NONE)
            elif (backend[0], 1) in s.locks or "joined_alone" in self.old:
                yield f"join {backend}", s._replace(locks=s.locks | {backend})
            else:
                yield f"refuse_join {backend}", s._replace(known=s.known - {backend})

    # The watcher

    def of_watcher(self, s: State) -> Iterator[tuple[str, State]]:
        watched = s.session and not s.died
        if "locks_first" in self.old and s.saw is None:
            yield "read_locks", s._replace(saw=frozenset(key for key, _ in s.locks))
        elif watched and not s.lost:
            seen = {key for key, _ in s.locks} if s.saw is None else s.saw
            wrong = s.session not in seen and self.is_open(s, s.session)
            broke = f"session {s.session} is open, and reported lost" if wrong else ""
            lost = s.session if s.session not in seen else 0
            yield "watch_sessions", s._replace(lost=lost, saw=None, broke=broke)
        # A claim over a connection that its worker has replaced ends within the grace of 5 seconds.
        lingers = s.sent in s.locks and s.sent[0] != s.session and "claims_linger" not in self.old
        if s.lost and s.session and not lingers:
            gone = s.session == s.lost and not self.is_open(s, s.lost)
            to = s._replace(lost=0)
            if gone or "rescued_as_seen" in self.old:
                broke = "" if gone else f"a worker with session {s.session} is taken for dead"
                to = to._replace(died=True, claimed=False, broke=broke)
            yield "rescue_worker", to

    # Promises

    def good(self, s: State) -> bool:
        """No claim stands that is in no hand, nor on its way to one; a living process has a session."""
        return (not s.claimed or s.claim == s.hand or s.answer != NONE) and (bool(s.known) or not s.alive)
