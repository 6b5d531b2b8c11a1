"""Log lines about requests that were refused: as many as a reader needs, however many requests there are."""

import asyncio
import logging

from surelane_service.logs import get_logger

INTERVAL = 10.0
"""Seconds that one line stands for. A sender without a secret can cause thousands of refusals a second."""

_logger = get_logger(__name__)

_Sort = tuple[str, str, int, str]


class Refusals:
    """Writes the first refusal of a sort at once, and then one line per interval with the number of further ones.

    The sorts are few: routes, statuses and reasons are ours. ``surelane.ingest.answers`` counts every refusal.
    """

    def __init__(self, interval: float = INTERVAL) -> None:
        """``interval``: seconds between two lines of one sort."""
        self._interval = interval
        self._further: dict[_Sort, int] = {}

    def note(self, path: str, status: int, reason: str) -> None:
        """Notes a refused request."""
        self._note(("request refused", path, status, reason))

    def note_garbled(self, reason: str) -> None:
        """Notes bytes that were no HTTP request."""
        self._note(("garbled HTTP", "", 400, reason))

    def close(self) -> None:
        """Writes what has not been written yet."""
        for sort, further in self._further.items():
            _write(sort, further)
        self._further.clear()

    def _note(self, sort: _Sort) -> None:
        if sort in self._further:
            self._further[sort] += 1
        else:
            _write(sort)
            self._begin(sort)

    def _begin(self, sort: _Sort) -> None:
        self._further[sort] = 0
        asyncio.get_running_loop().call_later(self._interval, self._end, sort)

    def _end(self, sort: _Sort) -> None:
        if further := self._further.pop(sort, 0):
            _write(sort, further)
            self._begin(sort)


def _write(sort: _Sort, further: int | None = None) -> None:
    if further == 0:
        return
    message, path, status, reason = sort
    level = logging.WARNING if path else logging.INFO
    about = {"path": path, "status": status} if path else {}
    more = {} if further is None else {"further": further}
    _logger.log(level, message, reason=reason, **about, **more)
