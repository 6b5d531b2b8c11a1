"""Whether ingest can take requests now: what ``/readyz`` answers."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from surelane_ingest.connections import Connections
from surelane_service.compatibility import unfit
from surelane_service.intake import Intake
from surelane_service.pool import UNAVAILABLE


class Readiness:
    """Ready: not stopping, and a database that answers and whose schema serves this version."""

    def __init__(self, connections: Connections, stopping: Callable[[], bool], budget: timedelta) -> None:
        self._connections = connections
        self._stopping = stopping
        self._budget = budget.total_seconds()

    async def unready(self) -> str | None:
        """Why no request can be taken, or ``None``."""
        if self._stopping():
            return "stopping"
        try:
            async with self._connections.lend() as connection, asyncio.timeout(self._budget):
                version, min_compatible = await Intake(connection).schema_version()
        except UNAVAILABLE as error:
            return f"the database is unavailable: {type(error).__name__}"
        except Exception as error:  # noqa: BLE001 - a probe answers, whatever is wrong with the schema
            return f"the schema cannot be used: {type(error).__name__}"
        return unfit(version, min_compatible)
