"""The sharer: keeps a workspace with a backlog of a kind from holding up the others.

Claims tell it of events that have waited long. The database finds the workspaces that they are of, and gives them
lanes of their own (``agent.share_kind``). Every worker tries, and the database lets one at a time do it.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from surelane.errors import DatabaseRefused, DatabaseUnavailable, TransientConflict
from surelane.events import Event
from surelane_service.engine import Engine
from surelane_service.logs import get_logger

LONG = timedelta(seconds=2)
"""How long an event has waited that is worth a look; the database's number, too."""
PAUSE = 1.0
"""Seconds between two looks, at least, where nothing is being moved."""
SHARE = 0.25
"""The part of the time that steps take, at most, while events are being moved."""

log = get_logger("surelane_worker.claiming.sharer")


class Sharer:
    """Look at kinds whose events wait long, until no workspace of them is a crowd."""

    def __init__(self, engine: Engine, lease: timedelta) -> None:
        """``lease`` is that of claims: it tells when an event was claimed."""
        self._engine = engine
        self._long = lease + LONG
        self._kinds: set[str] = set()
        self._reason = asyncio.Event()

    def claimed(self, events: Sequence[Event]) -> None:
        """Take note of a claim: if its first event has waited long, its kind is looked at."""
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
            log.error("a kind is not shared", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
        return None
