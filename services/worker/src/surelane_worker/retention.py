"""The duty that drops old history."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from surelane.errors import Conflict, DatabaseRefused, DatabaseUnavailable
from surelane_service.durations import jittered
from surelane_service.engine import Engine
from surelane_service.logs import get_logger
from surelane_worker.observing.readiness import Outage

FIRST = timedelta(minutes=2)
"""The pause before a worker's first pass: one that fails at its start drops nothing."""
PAUSE = timedelta(hours=1)
"""The pause between passes."""
RETRY = timedelta(minutes=5)
"""The pause after a pass that another transaction or an outage stopped."""
BREATH = 0.05
"""Seconds between steps, which leave the connection to sweeps and rescues."""
FALLBACK = 24
"""Passes of the responder for each one of another worker, which is needed only if the responder hangs."""

log = get_logger("surelane_worker.retention")


class Retention:
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
        """Drop through ``engine`` what is ``older_than`` that; ``None``: nothing.

        ``leads`` returns whether this worker does what one worker may do for all.
        """
        self._engine = engine
        self._older_than = older_than
        self._leads = leads
        self._first = first
        self._outage = Outage(log, "retention")

    async def run(self) -> None:
        """Drop old history soon and then every hour, until cancelled."""
        pause, left_out = self._first, 0
        while self._older_than is not None:
            await asyncio.sleep(jittered(pause))
            pause = PAUSE
            left_out += 1
            if left_out < FALLBACK and not self._leads():
                continue
            left_out = 0
            try:
                if await self._drop(self._older_than):
                    pause = RETRY
                self._outage.is_over()
            except DatabaseUnavailable as error:
                self._outage.goes_on(error)
                pause = RETRY
            except Conflict:
                pause = RETRY
            except DatabaseRefused as error:
                log.error("retention failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data

    async def _drop(self, older_than: timedelta) -> bool:
        """Drop what is old enough, in bounded steps. Return whether another transaction blocked it."""
        after: int | None = 0
        dropped, blocked = 0, False
        while after is not None:
            step = await self._engine.drop_history(older_than, after)
            after, dropped, blocked = step.after, dropped + step.dropped, blocked or step.blocked
            await asyncio.sleep(BREATH)
        if dropped:
            log.info("old history dropped", chunks_or_rows=dropped, older_than=str(older_than))
        if blocked:
            log.warning("history is locked by another transaction; retention tries again in five minutes")
        return blocked
