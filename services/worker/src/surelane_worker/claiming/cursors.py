"""Cursors: where claims start to scan. A cursor per lane and kind skips the dead rows of finished events.

The rules, and the faults each of them prevents, are in ``docs/adr``:

- A cursor is a margin behind the newest visibility time that a claim found in its lane.
- In a lane where no claim found anything yet, it is behind the time of the peek that found the lane empty.
- It moves back to anything that a peek finds behind it: a late commit, or a row that was locked.
- No cursor outlives its connection.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import zip_longest

from surelane.events import Event
from surelane_service.engine import LANES, Peek

MARGIN = timedelta(seconds=1)

Place = tuple[int, str]
"""A lane and a kind."""


@lru_cache(maxsize=64)
def _places(kinds: tuple[str, ...], lanes: int) -> tuple[Place, ...]:
    return tuple((lane, kind) for lane in range(lanes) for kind in kinds)


class Cursors:
    """The cursors of one worker."""

    def __init__(self) -> None:
        self._cursors: dict[Place, datetime] = {}
        self._lanes = LANES
        """The number of lanes that may have a cursor: up to the highest one that a claim or a peek found in use."""
        self._corrections = 0
        self._corrected: dict[Place, int] = {}
        """The number of each place's last correction."""
        self._forgotten = 0

    @property
    def corrections(self) -> int:
        """How often cursors moved back. A claim sent before the last time may not have seen the rows that caused it."""
        return self._corrections

    def starts(self, kinds: Sequence[str]) -> list[datetime | None]:
        """Return where a claim of ``kinds`` starts, per lane and kind (lane-major). ``None`` is the beginning."""
        return [self._cursors.get(place) for place in _places(tuple(kinds), self._lanes)]

    def advance(self, events: Sequence[Event], corrections: int) -> None:
        """Move cursors forward to the events of a claim, except those that moved back since it was sent.

        Args:
            events: the claimed ones.
            corrections: the value of :attr:`corrections` when the claim was sent.
        """
        if corrections < self._forgotten:
            return
        raced = corrections < self._corrections
        latest: dict[Place, datetime] = {}
        for event in events:
            if event.lane is not None and event.prior_vt is not None:
                place = (event.lane, event.kind)
                if place not in latest or event.prior_vt > latest[place]:
                    latest[place] = event.prior_vt
        for place, vt in latest.items():
            if raced and corrections < self._corrected.get(place, 0):
                continue
            self._lanes = max(self._lanes, place[0] + 1)
            seen = self._cursors.get(place)
            if seen is None or vt - MARGIN > seen:
                self._cursors[place] = vt - MARGIN

    def correct(self, kinds: Sequence[str], before: Sequence[datetime | None], peek: Peek) -> None:
        """Move cursors back to the events that a peek found behind them.

        A claim during the peek may have taken such an event, or may have missed it. Both look the same here.

        Args:
            kinds: those of the peek.
            before: the cursors when the peek was sent.
            peek: its answer.
        """
        lanes = len(peek.vts) // max(len(kinds), 1)
        self._lanes = max(self._lanes, lanes)
        # A lane may have come into use since the cursors were read, or be out of use by now.
        for place, was, vt in zip_longest(_places(tuple(kinds), self._lanes), before, peek.vts):
            first = vt if vt is not None and vt <= peek.now else None
            stands = self._cursors.get(place)
            if place[1] in peek.paused:
                self._hold_back(place, None)  # its events must not be behind the cursor when it is resumed
            elif first is not None and (stands is not None or was is None):
                # Even if the cursor is behind the event: a claim under way may have looked before the event was there.
                self._hold_back(place, first if stands is None else min(first, stands))
            elif stands is None and was is None:
                self._cursors[place] = peek.now - MARGIN

    def _hold_back(self, place: Place, to: datetime | None) -> None:
        if to is None:
            self._cursors.pop(place, None)
        else:
            self._cursors[place] = to
        self._corrections += 1
        self._corrected[place] = self._corrections

    def forget(self) -> None:
        """Drop every cursor: the next claims scan in full."""
        self._cursors.clear()
        self._corrections += 1
        self._forgotten = self._corrections
