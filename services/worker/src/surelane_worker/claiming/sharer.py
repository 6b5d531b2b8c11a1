"""Give a workspace with a large backlog of a kind lanes of its own, so that it does not hold up the others.

Claims report events that have waited long. The database then finds their workspaces and moves them
(``agent.share_kind``). Every worker tries, and the database lets one at a time do it.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from surelane.errors import DatabaseRefused, DatabaseUnavailable, TransientConflict
from surelane.events import Event
from surelane_service.engine import Engine
from surelane_service.logs import get_logger

LONG = timedelta(seconds=2)
"""The wait of an event from which on its kind is looked at. The database uses the same number."""
PAUSE = 1.0
"""Least seconds between two looks while no events are being moved."""
SHARE = 0.25
"""While events are being moved, steps take at most this part of the time."""

log = get_logger("surelane_worker.claiming.sharer")


class Sharer:
    """Look at kinds whose events wait long, until the lanes of all their crowds are separate."""

    def __init__(self, engine: Engine, lease: timedelta) -> None:
        """``lease``: how long claims stand; it tells when an event was claimed."""
        self._engine = engine
        self._long = lease + LONG
        self._kinds: set[str] = set()
        self._reason = asyncio.Event()

    def claimed(self, events: Sequence[Event]) -> None:
        """Note a claim. If its first event has waited long, look at its kind soon."""
        first = events[0]
        if first.prior_vt is not None and first.vt - first.prior_vt > self._long:
            self._kinds.add(first.kind)
            self._reason.set()

    async def run(self) -> None:
        """Look at kinds until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._reason.wait()
            self._reason.clear()
            kinds, self._kinds = self._kinds, set()
            began, pause = loop.time(), PAUSE
            for kind in kinds:
                again = await self._share(kind)
                if again is not None:
                    self._kinds.add(kind)
                    self._reason.set()
                    pause = min(pause, again.total_seconds())
            await asyncio.sleep(max(pause, (loop.time() - began) * (1 / SHARE - 1)))

    async def _share(self, kind: str) -> timedelta | None:
        try:
            return await self._engine.share_kind(kind)
        except (DatabaseUnavailable, TransientConflict):
            pass  # the claimer logs the outage; the next claim of an old event brings the kind again
        except DatabaseRefused as error:
            # The error's message may quote data.
            log.error("could not separate workspaces' backlogs", kind=kind, error=type(error).__name__)  # noqa: TRY400
        return None
