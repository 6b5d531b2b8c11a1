"""Where claims start scanning: a cursor a lane and kind steps over the dead rows that finished events leave behind.

The rules, and the faults each avoids, are in ``docs/adr``: a cursor stands a margin behind the newest visibility time
seen there; each lane is scanned in full at most once a period and at most 5 % of the time, so that whatever a cursor
passed over (a late commit, a skipped lock) is found; and no cursor outlives its connection.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from surelane.events import Event

LANES = 16
MARGIN = timedelta(seconds=1)
FULL_SCAN_SHARE = 0.05


Place = tuple[int, str]
"""A lane and a kind."""


@lru_cache(maxsize=64)
def _places(kinds: tuple[str, ...]) -> tuple[Place, ...]:
    return tuple((lane, kind) for lane in range(LANES) for kind in kinds)


class Cursors:
    """The cursors of one worker. Times ``now`` are of any steady clock, in seconds."""

    def __init__(self, full_scan_every: timedelta) -> None:
        self._period = full_scan_every.total_seconds()
        self._cursors: dict[Place, datetime] = {}
        self._full_scan_due: dict[Place, float] = {}

    def starts(self, kinds: Sequence[str], now: float) -> list[datetime | None]:
        """Where a claim of ``kinds`` starts, for each lane and kind (lane-major); ``None`` where a full scan is due."""
        due, cursors = self._full_scan_due, self._cursors
        return [cursors.get(place) if due.get(place, 0.0) > now else None for place in _places(tuple(kinds))]

    def learn(
        self,
        kinds: Sequence[str],
        starts: Sequence[datetime | None],
        events: Sequence[Event],
        *,
        exhausted: bool,
        now: float,
        took: float,
    ) -> None:
        """Moves cursors by what a claim found.

        Args:
            kinds: as given to :meth:`starts`.
            starts: what :meth:`starts` answered.
            events: what was claimed.
            exhausted: whether the claim went through every lane (it found less than it asked for).
            now: when the claim ended.
            took: how long it took, in seconds; a slow full scan is repeated the more rarely.
        """
        visited = self._advance(events)
        next_full_scan = now + max(self._period, took / FULL_SCAN_SHARE)
        for place, start in zip(_places(tuple(kinds)), starts, strict=True):
            if start is None and (exhausted or place in visited):
                self._full_scan_due[place] = next_full_scan

    def _advance(self, events: Sequence[Event]) -> set[Place]:
        visited = set()
        for event in events:
            if event.lane is None or event.prior_vt is None:
                continue
            place = (event.lane, event.kind)
            visited.add(place)
            seen = self._cursors.get(place)
            if seen is None or event.prior_vt - MARGIN > seen:
                self._cursors[place] = event.prior_vt - MARGIN
        return visited

    def forget(self) -> None:
        """Drops every cursor: the next claims scan in full."""
        self._cursors.clear()
        self._full_scan_due.clear()
