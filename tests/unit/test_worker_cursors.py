"""The cursor rules."""

from datetime import UTC, datetime, timedelta

from surelane.events import Event, Peek
from surelane_worker.cursors import LANES, MARGIN, Cursors

T0 = datetime(2025, 1, 1, tzinfo=UTC)
KINDS = ["a", "b"]


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def seen(lane: int, kind: str, after: float, head: bool = True) -> Event:
    """A claimed event that was visible since ``after`` seconds."""
    return Event(1, kind, T0, 1, 1, at(after), "{}", prior_vt=at(after) if head else None, lane=lane)


def place(lane: int, kind: str) -> int:
    return lane * len(KINDS) + KINDS.index(kind)


def peek(now: float, first: dict[int, float] | None = None, paused: str | None = None) -> Peek:
    """What a peek finds: since or until when the first event of each place is (in)visible."""
    vts = [at(first[nth]) if first and nth in first else None for nth in range(LANES * len(KINDS))]
    return Peek(at(now), vts, frozenset([paused] if paused else []), timedelta(), None)


def corrected(cursors: Cursors, by: Peek) -> list[datetime | None]:
    cursors.correct(KINDS, cursors.starts(KINDS), by)
    return cursors.starts(KINDS)


def test_first_claim_scans_in_full() -> None:
    assert Cursors().starts(KINDS) == [None] * LANES * 2


def test_cursor_stands_a_margin_behind_the_newest_seen() -> None:
    cursors = Cursors()
    cursors.advance([seen(3, "a", 10), seen(3, "a", 30), seen(3, "a", 20), seen(4, "b", 5)])
    starts = cursors.starts(KINDS)
    assert starts[place(3, "a")] == at(30) - MARGIN
    assert starts[place(4, "b")] == at(5) - MARGIN
    assert starts[place(3, "b")] is None


def test_claims_never_move_a_cursor_back() -> None:
    cursors = Cursors()
    cursors.advance([seen(3, "a", 30)])
    cursors.advance([seen(3, "a", 10)])
    assert cursors.starts(KINDS)[place(3, "a")] == at(30) - MARGIN


def test_members_that_were_not_heads_move_no_cursor() -> None:
    cursors = Cursors()
    cursors.advance([seen(3, "a", 30, head=False)])
    assert cursors.starts(KINDS)[place(3, "a")] is None


def test_where_nothing_was_ever_found_the_cursor_stands_a_margin_behind_the_peek_that_says_so() -> None:
    cursors = Cursors()
    assert corrected(cursors, peek(50)) == [at(50) - MARGIN] * LANES * 2
    assert corrected(cursors, peek(60)) == [at(50) - MARGIN] * LANES * 2, "a late commit is still ahead of it"


def test_what_is_not_visible_yet_holds_no_cursor_back() -> None:
    starts = corrected(Cursors(), peek(50, {place(3, "a"): 51}))
    assert starts[place(3, "a")] == at(50) - MARGIN


def test_a_peek_moves_a_cursor_back_to_what_it_passed_over() -> None:
    cursors = Cursors()
    cursors.advance([seen(3, "a", 30), seen(4, "a", 30)])
    starts = corrected(cursors, peek(50, {place(3, "a"): 7, place(4, "a"): 40, place(5, "b"): 6}))
    assert starts[place(3, "a")] == at(7)
    assert starts[place(4, "a")] == at(30) - MARGIN
    assert starts[place(5, "b")] == at(6)


def test_what_claims_took_during_a_peek_moves_no_cursor_back() -> None:
    cursors = Cursors()
    cursors.advance([seen(3, "a", 30)])
    before = cursors.starts(KINDS)
    cursors.advance([seen(3, "a", 45)])
    cursors.correct(KINDS, before, peek(50, {place(3, "a"): 31}))
    assert cursors.starts(KINDS)[place(3, "a")] == at(45) - MARGIN


def test_a_paused_kind_is_scanned_in_full_when_it_is_resumed() -> None:
    cursors = Cursors()
    cursors.advance([seen(3, "a", 30), seen(3, "b", 30)])
    starts = corrected(cursors, peek(50, paused="a"))
    assert {starts[place(lane, "a")] for lane in range(LANES)} == {None}
    assert starts[place(3, "b")] == at(30) - MARGIN


def test_forgotten_cursors_scan_in_full() -> None:
    cursors = Cursors()
    cursors.advance([seen(3, "a", 30)])
    cursors.forget()
    assert cursors.starts(KINDS) == [None] * LANES * 2


def test_cursors_are_kept_while_other_kinds_are_claimed() -> None:
    cursors = Cursors()
    cursors.advance([seen(3, "a", 30)])
    assert cursors.starts(["b"]) == [None] * LANES
    assert cursors.starts(KINDS)[place(3, "a")] is not None
