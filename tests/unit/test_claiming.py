"""A worker's cursors pass over no event for longer than two polls."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from surelane.events import Event
from surelane_service.engine import LANES, Peek
from surelane_worker.claiming.claimer import MARGIN, Cursors

T0 = datetime(2025, 1, 1, tzinfo=UTC)
KINDS = ["a", "b"]


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def seen(lane: int, kind: str, after: float, head: bool = True) -> Event:
    """Return a claimed event that became visible at ``after`` seconds."""
    return Event(1, kind, T0, 1, 1, at(after), "{}", prior_vt=at(after) if head else None, lane=lane)


def place(lane: int, kind: str) -> int:
    return lane * len(KINDS) + KINDS.index(kind)


def peek(now: float, first: dict[int, float] | None = None, paused: str | None = None) -> Peek:
    """Return a peek: the visible time of the first event of each place."""
    vts = [at(first[nth]) if first and nth in first else None for nth in range(LANES * len(KINDS))]
    return Peek(at(now), vts, frozenset([paused] if paused else []), timedelta(), None)


def corrected(cursors: Cursors, by: Peek) -> list[datetime | None]:
    cursors.correct(KINDS, cursors.starts(KINDS), by)
    return cursors.starts(KINDS)


def test_first_claim_and_one_after_forgetting_scan_in_full() -> None:
    cursors = Cursors()
    assert cursors.starts(KINDS) == [None] * LANES * 2
    sent = cursors.corrections
    cursors.advance([seen(3, "a", 30)], sent)
    assert cursors.starts(["b"]) == [None] * LANES
    assert cursors.starts(KINDS)[place(3, "a")] is not None, "it is kept while other kinds are claimed"
    cursors.forget()
    assert cursors.starts(KINDS) == [None] * LANES * 2
    cursors.advance([seen(3, "a", 30)], sent)
    assert cursors.starts(KINDS) == [None] * LANES * 2, "cursors of another connection do not come back"


def test_cursor_stands_a_margin_behind_the_newest_seen_and_no_claim_moves_it_back() -> None:
    cursors = Cursors()
    first = [seen(3, "a", 10), seen(3, "a", 30), seen(3, "a", 20), seen(4, "b", 5)]
    # Neither an older event nor a member that was no head moves it.
    for found in (first, [seen(3, "a", 10)], [seen(3, "a", 40, head=False), seen(3, "b", 40, head=False)]):
        cursors.advance(found, cursors.corrections)
        starts = cursors.starts(KINDS)
        assert starts[place(3, "a")] == at(30) - MARGIN
        assert starts[place(4, "b")] == at(5) - MARGIN
        assert starts[place(3, "b")] is None


def test_a_cursor_stands_a_margin_behind_an_empty_peek_and_goes_back_to_what_it_passed_over() -> None:
    cursors = Cursors()
    assert corrected(cursors, peek(50)) == [at(50) - MARGIN] * LANES * 2
    assert corrected(cursors, peek(60)) == [at(50) - MARGIN] * LANES * 2, "a late commit is still ahead of it"
    starts = corrected(Cursors(), peek(50, {place(3, "a"): 51}))
    assert starts[place(3, "a")] == at(50) - MARGIN
    cursors = Cursors()
    cursors.advance([seen(3, "a", 30), seen(4, "a", 30)], cursors.corrections)
    starts = corrected(cursors, peek(50, {place(3, "a"): 7, place(4, "a"): 40, place(5, "b"): 6}))
    assert starts[place(3, "a")] == at(7)
    assert starts[place(4, "a")] == at(30) - MARGIN
    assert starts[place(5, "b")] == at(6)
    # Also where a claim moved it on meanwhile.
    cursors = Cursors()
    cursors.advance([seen(3, "a", 30)], cursors.corrections)
    before = cursors.starts(KINDS)
    cursors.advance([seen(3, "a", 45)], cursors.corrections)
    cursors.correct(KINDS, before, peek(50, {place(3, "a"): 31}))
    assert cursors.starts(KINDS)[place(3, "a")] == at(31)


def test_a_claim_that_was_sent_before_a_correction_does_not_undo_it() -> None:
    cursors = Cursors()
    cursors.advance([seen(3, "a", 30), seen(4, "a", 30)], cursors.corrections)
    sent = cursors.corrections
    corrected(cursors, peek(50, {place(3, "a"): 7}))
    cursors.advance([seen(3, "a", 45), seen(4, "a", 45)], sent)
    assert cursors.starts(KINDS)[place(3, "a")] == at(7)
    cursors.advance([seen(3, "a", 45), seen(4, "a", 45)], cursors.corrections)
    assert cursors.starts(KINDS)[place(3, "a")] == at(45) - MARGIN
    assert cursors.starts(KINDS)[place(4, "a")] == at(45) - MARGIN


class Race:
    """Run two claims and a peek over one lane step by step, while an event is committed late."""

    LATE = 7.0

    def __init__(self, cursor: float | None, *, full: bool) -> None:
        self.cursors = Cursors()
        if cursor is not None:
            self.cursors.advance([seen(0, "a", cursor + MARGIN.total_seconds())], 0)
        self.full = full
        self.visible = {30.0, 31.0}
        self.later = [45.0, 46.0]
        self.taken: set[float] = set()
        self.peeked: Peek | None = None
        self.told = False

    def commit(self) -> None:
        self.visible.add(self.LATE)

    def send_claim(self) -> None:
        self.start, self.sent = self.cursors.starts(["a"])[0], self.cursors.corrections

    def run_claim(self) -> None:
        """Claim the first event. Another becomes visible afterwards."""
        found = sorted(vt for vt in self.visible if self.start is None or at(vt) >= self.start)[:1]
        self.taken.update(found)
        self.visible.difference_update(found)
        self.found = [seen(0, "a", vt) for vt in found]
        self.visible.update(self.later[:1])
        del self.later[:1]

    def end_claim(self) -> None:
        self.cursors.advance(self.found, self.sent)

    def send_peek(self) -> None:
        self.before = self.cursors.starts(["a"])

    def run_peek(self) -> None:
        start = None if self.full else self.before[0]
        first = min((vt for vt in self.visible if start is None or at(vt) >= start), default=None)
        self.told = self.LATE in self.visible and first == self.LATE
        self.peeked = Peek(
            at(50), [None if first is None else at(first), *[None] * 15], frozenset(), timedelta(), None
        )

    def end_peek(self) -> None:
        assert self.peeked is not None
        self.cursors.correct(["a"], self.before, self.peeked)

    def is_lost(self) -> bool:
        """Return whether the next claim passes over the event although a peek saw it."""
        start = self.cursors.starts(["a"])[0]
        return self.told and self.LATE not in self.taken and start is not None and start > at(self.LATE)


CLAIMS = ("send_claim", "run_claim", "end_claim") * 2
PEEK = ("send_peek", "run_peek", "end_peek")


def interleavings(*programs: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield every order of all steps that keeps the order of each program."""
    if not any(programs):
        yield ()
    for nth, program in enumerate(programs):
        if program:
            for rest in interleavings(*programs[:nth], program[1:], *programs[nth + 1 :]):
                yield (program[0], *rest)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("cursor", [None, 5.0, 29.0])
def test_what_a_peek_saw_is_found_by_the_next_claim_in_every_order(cursor: float | None, full: bool) -> None:
    told = 0
    for steps in interleavings(CLAIMS, PEEK, ("commit",)):
        race = Race(cursor, full=full)
        for step in steps:
            getattr(race, step)()
        told += race.told
        assert not race.is_lost(), steps
    assert told or (cursor == 29.0 and not full)


def test_a_resumed_kind_is_scanned_in_full_and_a_lane_of_a_priority_has_a_cursor_once_in_use() -> None:
    cursors = Cursors()
    cursors.advance([seen(3, "a", 30), seen(3, "b", 30)], cursors.corrections)
    starts = corrected(cursors, peek(50, paused="a"))
    assert {starts[place(lane, "a")] for lane in range(LANES)} == {None}
    assert starts[place(3, "b")] == at(30) - MARGIN
    cursors = Cursors()
    cursors.advance([seen(17, "b", 30)], cursors.corrections)
    # One that went out of use keeps its place.
    for starts in (cursors.starts(KINDS), corrected(cursors, peek(40))):
        assert len(starts) == 18 * len(KINDS)
        assert starts[place(17, "b")] == at(30) - MARGIN
    wide = replace(peek(40), vts=[None] * 20 * len(KINDS))
    assert corrected(cursors, wide)[place(19, "a")] == at(40) - MARGIN
    vts = [at(12) if nth == place(17, "b") else None for nth in range(20 * len(KINDS))]
    assert corrected(cursors, replace(peek(40), vts=vts))[place(17, "b")] == at(12)
