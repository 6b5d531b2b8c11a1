"""Where claims start scanning: a cursor a lane and kind steps over the dead rows that finished events leave behind.

The rules, and the faults each avoids, are in ``docs/adr``: a cursor stands a margin behind the newest visibility time
that a claim found there; where nothing was found yet, behind the time at which a peek saw that there was nothing; it
goes back to whatever a peek finds behind it (a late commit, a skipped lock); and none outlives its connection.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from surelane.events import Event
from surelane_service.engine import Peek

LANES = 16
MARGIN = timedelta(seconds=1)


Place = tuple[int, str]
"""A lane and a kind."""


@lru_cache(maxsize=64)
def _places(kinds: tuple[str, ...]) -> tuple[Place, ...]:
    return tuple((lane, kind) for lane in range(LANES) for kind in kinds)


class Cursors:
    """The cursors of one worker."""

    def __init__(self) -> None:
        self._cursors: dict[Place, datetime] = {}
        self._corrections = 0
        self._corrected: dict[Place, int] = {}
        """For each place, the number of its last correction."""
        self._forgotten = 0

    @property
    def corrections(self) -> int:
        """How often cursors were held back. A claim that was sent before the last time may not have seen why."""
        return self._corrections

    def starts(self, kinds: Sequence[str]) -> list[datetime | None]:
        """Where a claim of ``kinds`` starts, for each lane and kind (lane-major); ``None``: from the beginning."""
        return [self._cursors.get(place) for place in _places(tuple(kinds))]

    def advance(self, events: Sequence[Event], corrections: int) -> None:
        """Moves cursors on to what a claim found, except those that were held back since it was sent.

        Args:
            events: what it found.
            corrections: :attr:`corrections` when it was sent.
        """
        if corrections < self._forgotten:
            return
        raced = corrections < self._corrections
        for event in events:
            if event.lane is None or event.prior_vt is None:
                continue
            place = (event.lane, event.kind)
            if raced and corrections < self._corrected.get(place, 0):
                continue
            seen = self._cursors.get(place)
            if seen is None or event.prior_vt - MARGIN > seen:
                self._cursors[place] = event.prior_vt - MARGIN

    def correct(self, kinds: Sequence[str], before: Sequence[datetime | None], peek: Peek) -> None:
        """Corrects cursors by what a peek found behind them.

        They also go back to what a claim took during the peek: whether it did, or looked too early, cannot be told.

        Args:
            kinds: what was peeked at.
            before: the cursors when the peek was sent.
            peek: what it found.
        """
        for place, was, vt in zip(_places(tuple(kinds)), before, peek.vts, strict=True):
            first = vt if vt is not None and vt <= peek.now else None
            stands = self._cursors.get(place)
            if place[1] in peek.paused:
                self._hold_back(place, None)  # when it is resumed, nothing may be behind
            elif first is not None and (stands is not None or was is None):
                # Though the cursor is behind it: a claim that is on its way may have looked before it was there.
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
        """Drops every cursor: the next claims scan in full."""
        self._cursors.clear()
        self._corrections += 1
        self._forgotten = self._corrections
