"""The connections that store events: how long a call may take, and whether the database takes events."""

import time
from datetime import timedelta

from surelane.calls import Calls, Pool
from surelane.errors import described, told
from surelane_service.compatibility import schema_unfit, schema_version
from surelane_service.logs import get_logger

STEADY = 2.0
"""Seconds without a refusal after which the database counts as working: a full disk takes some events, not all."""
UNREADY_FOR = 10.0
"""Seconds after the last refusal for which ingest is not ready. Only a further event shows whether it is again."""

_logger = get_logger(__name__)


class Connections:
    """A pool, and what is known of its server. ``budget``: seconds that a call may take, its connection included."""

    def __init__(self, pool: Pool, budget: timedelta) -> None:
        self.pool = pool
        self.calls = Calls(pool, cuts=True)
        self.budget = budget.total_seconds()
        self._refuses = False
        self._refused_at = 0.0
        self._why = ""

    def refused(self, error: BaseException) -> None:
        """Note that the database took no events, and log once for each reason."""
        if not self._refuses or self._why != told(error):
            _logger.error("the database does not take events", **described(error))
        self._refuses, self._refused_at, self._why = True, time.monotonic(), told(error)

    def took(self) -> None:
        """Note that the database took events, and log once that it does so again."""
        if self._refuses and time.monotonic() - self._refused_at >= STEADY:
            _logger.info("the database takes events again")
            self._refuses = False

    async def unready(self) -> str | None:
        """Return why the database cannot serve this version; ``None``: it can."""
        reason = await schema_unfit(schema_version(self.calls), self.budget)
        if reason is None and self._refuses and time.monotonic() - self._refused_at < UNREADY_FOR:
            return f"the database does not take events: {self._why}"
        return reason
