"""Bounds of the public port: how aiohttp reads HTTP, and how many log lines refused requests cause."""

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from aiohttp.http import HttpProcessingError

from surelane_service.logs import get_logger

KEEP_ALIVE = 75.0
"""Seconds an idle connection is kept: longer than the usual 60 of load balancers, so that they close it first.

A server that closed first could do so while the load balancer sends the next request.
"""

MAX_HEADERS, MAX_FIELD = 64, 4096
"""The most headers of a request, and the most bytes of each and of the request line.

Slack and the proxies on the way send about thirty, of about a hundred bytes. aiohttp holds the headers twice.
"""

LINGER = 1.0
"""Seconds for which the rest of a refused body is read and dropped, so that the client can read its answer."""

INTERVAL = 10.0
"""Seconds that one log line covers. A sender without a secret can cause thousands of refusals per second."""

_logger = get_logger(__name__)

_Sort = tuple[str, str, int, str]


class Refusals:
    """Log the first refusal of a sort at once, then one line per interval with the number of further ones.

    A sort is a route, a status and a reason. All three are ours, so there are few sorts. The metric
    ``surelane.ingest.answers`` counts every refusal.
    """

    def __init__(self, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._further: dict[_Sort, int] = {}

    def note(self, path: str, status: int, reason: str, message: str = "request refused") -> None:
        """Note a request, or with an empty path bytes that were none."""
        sort = (message, path, status, reason)
        if sort in self._further:
            self._further[sort] += 1
        else:
            _write(sort)
            self._begin(sort)

    def close(self) -> None:
        """Log the refusals that no line has counted yet."""
        for sort, further in self._further.items():
            _write(sort, further)
        self._further.clear()

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


def server_options(drain_timeout: timedelta, refusals: Refusals) -> Mapping[str, Any]:
    """Return the options of aiohttp's ``AppRunner`` for the public port."""
    logger = logging.getLogger("surelane_ingest.http")
    logger.filters[:] = [_WithoutGarbled(refusals)]
    return {
        "auto_decompress": False,  # compressed bodies are refused, and never inflated
        "keepalive_timeout": KEEP_ALIVE,
        "lingering_time": LINGER,
        "max_headers": MAX_HEADERS,
        "max_field_size": MAX_FIELD,
        "max_line_size": MAX_FIELD,
        "shutdown_timeout": drain_timeout.total_seconds(),
        "logger": logger,
    }


class _WithoutGarbled(logging.Filter):
    """Count garbled HTTP without its bytes. aiohttp's own line would quote them, with a stack trace."""

    def __init__(self, refusals: Refusals) -> None:
        super().__init__()
        self._refusals = refusals

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        self._refusals.note("", 400, type(error).__name__, "garbled HTTP")
        return False
