"""How the public port speaks HTTP: what aiohttp is told, and what it must not write into the logs."""

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from aiohttp.http import HttpProcessingError

KEEP_ALIVE = 75.0
"""Seconds an idle connection is kept: longer than load balancers' usual 60, so that it is they who close it."""

LINGER = 1.0
"""Seconds for which the rest of a refused body is read and dropped, so that the client gets to see its answer."""


def server_options(drain_timeout: timedelta) -> Mapping[str, Any]:
    """The options of the public port's server; for those of aiohttp, see its ``AppRunner``."""
    return {
        "auto_decompress": False,  # compressed bodies are refused, and never inflated
        "keepalive_timeout": KEEP_ALIVE,
        "lingering_time": LINGER,
        "shutdown_timeout": drain_timeout.total_seconds(),
        "logger": _logger(),
    }


def _logger() -> logging.Logger:
    logger = logging.getLogger("surelane_ingest.http")
    if _without_payload not in logger.filters:
        logger.addFilter(_without_payload)
    return logger


def _without_payload(record: logging.LogRecord) -> bool:
    """Says of garbled HTTP that it came, not what it carried: aiohttp would quote it, with a stack trace."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.exc_info = None
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        record.msg, record.args = "garbled HTTP: %s", (type(error).__name__,)
    return True
