"""How the public port speaks HTTP: what aiohttp is told, and what it must not write into the logs."""

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from aiohttp.http import HttpProcessingError

from surelane_ingest.refusals import Refusals

KEEP_ALIVE = 75.0
"""Seconds an idle connection is kept: longer than load balancers' usual 60, so that it is they who close it."""

MAX_HEADERS, MAX_FIELD = 64, 4096
"""How many headers a request may have, and the bytes of each, its request line included.

Slack and the proxies on the way send some thirty, of some hundred bytes. aiohttp holds a request's headers twice.
"""

LINGER = 1.0
"""Seconds for which the rest of a refused body is read and dropped, so that the client gets to see its answer."""


def server_options(drain_timeout: timedelta, refusals: Refusals) -> Mapping[str, Any]:
    """The options of the public port's server; for those of aiohttp, see its ``AppRunner``."""
    return {
        "auto_decompress": False,  # compressed bodies are refused, and never inflated
        "keepalive_timeout": KEEP_ALIVE,
        "lingering_time": LINGER,
        "max_headers": MAX_HEADERS,
        "max_field_size": MAX_FIELD,
        "max_line_size": MAX_FIELD,
        "shutdown_timeout": drain_timeout.total_seconds(),
        "logger": _logger(refusals),
    }


def _logger(refusals: Refusals) -> logging.Logger:
    logger = logging.getLogger("surelane_ingest.http")
    logger.filters[:] = [_WithoutGarbled(refusals)]
    return logger


class _WithoutGarbled(logging.Filter):
    """Notes that garbled HTTP came, not what it carried: aiohttp would quote it, with a stack trace."""

    def __init__(self, refusals: Refusals) -> None:
        super().__init__()
        self._refusals = refusals

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        self._refusals.note_garbled(type(error).__name__)
        return False
