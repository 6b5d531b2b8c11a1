"""Keep the state of the Socket Mode connections, for ``/readyz``, metrics and logs."""

import asyncio
from collections import Counter

from opentelemetry import metrics
from opentelemetry.metrics import Observation

from surelane_service.logs import get_logger
from surelane_service.telemetry.setup import SCHEMA_URL

UNREADY_AFTER = 10.0
"""Seconds without a connection after which the service is not ready: longer than a usual reconnect takes."""

_logger = get_logger(__name__)


class Links:
    """The state of all connections.

    Attributes:
        open: connections on which Slack can send.
        pending: envelopes that were taken and are not acknowledged yet.
        envelopes: by sort and outcome, since the process began.
    """

    def __init__(self) -> None:
        self.open = 0
        self.pending = 0
        self.envelopes: Counter[tuple[str, str]] = Counter()
        self._lost_at: float | None = None
        self._problem = "none is open yet"
        self._reported: dict[int, str] = {}
        meter = metrics.get_meter("surelane_ingest", schema_url=SCHEMA_URL)
        meter.create_observable_gauge(
            "surelane.ingest.socket.connections",
            [lambda _: [Observation(self.open)]],
            "{connection}",
            "Open connections of Socket Mode.",
        )
        meter.create_observable_gauge(
            "surelane.ingest.socket.unacknowledged",
            [lambda _: [Observation(self.pending)]],
            "{envelope}",
            "Envelopes that were taken and are not acknowledged yet.",
        )
        meter.create_observable_counter(
            "surelane.ingest.socket.envelopes",
            [
                lambda _: [
                    Observation(number, {"type": kind, "outcome": outcome})
                    for (kind, outcome), number in self.envelopes.items()
                ]
            ],
            "{envelope}",
            "Envelopes of Socket Mode by type and outcome.",
        )

    def opened(self, place: int, of_the_app: int) -> None:
        """Note that a connection is open. The app now has ``of_the_app`` of them."""
        self.open += 1
        self._reported.pop(place, None)
        _logger.info("connected to Slack", place=place, open=self.open, of_the_app=of_the_app)

    def closed(self, place: int, reason: str) -> None:
        """Note that an open connection ended."""
        self.open -= 1
        if not self.open:
            self._lost_at, self._problem = asyncio.get_running_loop().time(), reason
        _logger.info("a connection to Slack ended", place=place, open=self.open, reason=reason)

    def failed(self, place: int, reason: str) -> None:
        """Note that no connection could be opened. The log names each further reason once."""
        if not self.open:
            self._problem = reason
        if self._reported.get(place) != reason:
            self._reported[place] = reason
            _logger.warning("no connection to Slack; trying again", place=place, reason=reason)

    def unready(self) -> str | None:
        """Return why Slack cannot send events here; ``None``: it can, or a connection ended just now."""
        if self.open:
            return None
        if self._lost_at is not None:
            for_seconds = asyncio.get_running_loop().time() - self._lost_at
            if for_seconds < UNREADY_AFTER:
                return None
        return f"there is no Socket Mode connection: {self._problem}"
