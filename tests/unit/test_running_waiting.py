"""The order in which claimed work gets the slots of a worker."""

from datetime import UTC, datetime
from unittest.mock import sentinel

from surelane.events import Event
from surelane_worker.leasing import Work
from surelane_worker.running.slots import AGED, Waiting

NOW = datetime(2025, 1, 1, tzinfo=UTC)
FIRST, USUAL, SECOND, LAST, CROWD = 16, 3, 20, 24, 28
"""Lanes of priorities 0, 1, 2 and 3, and of a crowd at priority 1."""


def work(identity: int, lane: int | None, since: float = 0.0) -> Work:
    return Work(sentinel.handler, [Event(identity, "a", NOW, 1, 1, NOW, "{}", lane=lane)], 600.0, since)


def taken(waiting: Waiting, now: float = 0.0) -> list[int]:
    return [waiting.take(now).claims[0].event.id for _ in range(len(waiting))]


def filled(*works: Work) -> Waiting:
    waiting = Waiting()
    for each in works:
        waiting.add(each)
    return waiting


def test_work_runs_by_priority_and_within_a_band_in_the_order_of_its_claims() -> None:
    assert taken(filled(*(work(n, n % 16) for n in range(5)))) == [0, 1, 2, 3, 4]
    lanes = (LAST, SECOND, USUAL, FIRST)
    assert taken(filled(*(work(n, lane) for n, lane in enumerate(lanes)))) == [3, 2, 1, 0]
    assert taken(filled(work(0, LAST), work(1, None), work(2, FIRST))) == [2, 1, 0], "None has priority 1"
    crowd = [work(n, CROWD) for n in range(3)]
    found = taken(filled(*crowd, work(3, USUAL), work(4, FIRST), work(5, SECOND)))
    assert found[:2] == [4, 3], "of priority 1, the band with least work comes first"
    waiting = filled(work(0, USUAL), work(1, FIRST))
    waiting.add(work(2, USUAL), first=True)
    assert taken(waiting) == [1, 2, 0], "a group that goes on is ahead of its band"


def test_work_that_waited_long_comes_before_all_other() -> None:
    waiting = filled(work(0, LAST, since=0.0), work(1, FIRST, since=AGED / 2), work(2, USUAL, since=AGED / 2))
    assert taken(waiting, now=AGED) == [0, 1, 2]


def test_work_that_waited_too_long_is_taken_from_every_band() -> None:
    lanes = (USUAL, FIRST, LAST, USUAL)
    waiting = filled(*(work(n, lane, since=n) for n, lane in enumerate(lanes)))
    assert sorted(each.claims[0].event.id for each in waiting.take_since(2)) == [0, 1]
    assert len(waiting) == 2
    assert taken(waiting) == [3, 2]
    assert not waiting
