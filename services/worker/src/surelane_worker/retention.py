"""The duty that drops old history."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from surelane_service.engine import Engine
from surelane_service.logs import get_logger
from surelane_worker.hourly import BREATH, FIRST, Hourly

log = get_logger("surelane_worker.retention")


class Retention(Hourly):
    """Drops history that is older than this worker's setting, with its steps and signals.

    Workers may have different settings: the shortest one counts, because what it drops is gone for all.
    """

    def __init__(
        self,
        engine: Engine,
        older_than: timedelta | None,
        leads: Callable[[], bool],
        *,
        first: timedelta = FIRST,
    ) -> None:
        """Drop through ``engine`` what is ``older_than`` that; ``None``: nothing."""
        super().__init__(log, "retention", leads, first)
        self._engine = engine
        self._older_than = older_than

    async def run(self) -> None:
        """Drop old history soon and then every hour, until cancelled."""
        if self._older_than is not None:
            await super().run()

    async def pass_once(self) -> bool:
        """Drop what is old enough, in bounded steps. Return whether another transaction blocked it."""
        assert self._older_than is not None  # noqa: S101 - or it would not run
        after: int | None = 0
        dropped, blocked = 0, False
        while after is not None:
            step = await self._engine.drop_history(self._older_than, after)
            after, dropped, blocked = step.after, dropped + step.dropped, blocked or step.blocked
            await asyncio.sleep(BREATH)
        if dropped:
            log.info("old history dropped", chunks_or_rows=dropped, older_than=str(self._older_than))
        if blocked:
            log.warning("history is locked by another transaction; retention tries again in five minutes")
        return blocked
