"""Where claims start scanning: a cursor a lane and kind steps over the dead rows that finished events leave behind.

The rules, and the faults each avoids, are in ``docs/adr``: a cursor stands a margin behind the newest visibility time
that a claim found there; where nothing was found yet, behind the time at which a peek saw that there was nothing; it
goes back to whatever a peek finds behind it (a late commit, a skipped lock); and none outlives its connection.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from surelane.events import Event, Peek

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

    def starts(self, kinds: Sequence[str]) -> list[datetime | None]:
        """Where a claim of ``kinds`` starts, for each lane and kind (lane-major); ``None``: from the beginning."""
        return [self._cursors.get(place) for place in _places(tuple(kinds))]

    def advance(self, events: Sequence[Event]) -> None:
        """Moves cursors on to what a claim found."""
        for event in events:
            if event.lane is None or event.prior_vt is None:
                continue
            place = (event.lane, event.kind)
            seen = self._cursors.get(place)
            if seen is None or event.prior_vt - MARGIN > seen:
                self._cursors[place] = event.prior_vt - MARGIN

    def correct(self, kinds: Sequence[str], before: Sequence[datetime | None], peek: Peek) -> None:
        """Corrects cursors by what a peek found behind them.

        Args:
            kinds: what was peeked at.
            before: the cursors when the peek was sent. What it found ahead of those, claims find, too.
            peek: what it found.
        """
        for place, was, vt in zip(_places(tuple(kinds)), before, peek.vts, strict=True):
            first = vt if vt is not None and vt <= peek.now else None
            if place[1] in peek.paused:
                self._cursors.pop(place, None)  # when it is resumed, nothing may be behind
            elif was is None:
                self._cursors.setdefault(place, peek.now - MARGIN if first is None else first)
            elif first is not None and first < was:
                self._cursors[place] = first

    def forget(self) -> None:
        """Drops every cursor: the next claims scan in full."""
        self._cursors.clear()
