"""The duty that erases what belongs to workspaces and organizations that have removed the app."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from surelane_service.engine import Engine
from surelane_service.logs import get_logger
from surelane_worker.hourly import BREATH, FIRST, Hourly

WAIT = 1.0
"""Seconds between looks at events that have not ended yet."""
PATIENCE = 300
"""Most such looks of one pass."""

log = get_logger("surelane_worker.uninstalls")


class Uninstalls(Hourly):
    """Erases what belongs to owners that removed the app for longer than a grace, and did not install it again."""

    def __init__(
        self,
        engine: Engine,
        grace: timedelta | None,
        name: str,
        leads: Callable[[], bool],
        *,
        first: timedelta = FIRST,
    ) -> None:
        """Erase through ``engine``, after ``grace``; ``None``: nothing. ``name`` is the worker's, for the receipt."""
        super().__init__(log, "erasing after uninstalls", leads, first)
        self._engine = engine
        self._grace = grace
        self._by = f"worker {name}"

    async def run(self) -> None:
        """Erase what is due, soon and then every hour, until cancelled."""
        if self._grace is not None:
            await super().run()

    async def pass_once(self) -> bool:
        """Erase what is due, in bounded steps. Return whether events that do not end stopped it."""
        assert self._grace is not None  # noqa: S101 - or it would not run
        waits = 0
        while (step := await self._engine.erase_uninstalled(self._grace, self._by)) is not None:
            if step.done:
                # The key is in the log alone: it proves whose erasure the receipt is about.
                named = {"owner": step.owner, "receipt": step.receipt, "key": step.key}
                log.info("erased what belonged to an owner that removed the app", **named)
            waits += step.waiting > 0
            if waits > PATIENCE:
                log.warning("events of an owner that removed the app do not end", owner=step.owner)
                return True
            await asyncio.sleep(WAIT if step.waiting else BREATH)
        return False
