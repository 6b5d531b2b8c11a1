"""The sweep: moves exhausted and too old events to history, about once a minute."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from surelane_service.engine import Engine
from surelane_service.logs import get_logger
from surelane_service.pool import UNAVAILABLE, DatabaseError
from surelane_worker.handling.retry import jittered
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.outage import Outage

BATCH = 1000

log = get_logger("surelane_worker.duties.sweep")


class Sweep:
    """Sweeps by age only Slack events of kinds this worker handles, and only once it has been claiming for that age.

    So an outage of the workers, or of the database, never empties the backlog that built up meanwhile. Attempts are
    judged by the maximum that is stored with an event or its kind: other teams' kinds have other maxima.
    """

    def __init__(
        self,
        engine: Engine,
        kinds: Sequence[str],
        metrics: Metrics,
        *,
        max_vt_age: timedelta,
        interval: timedelta,
        claiming_for: Callable[[], float],
    ) -> None:
        """``claiming_for`` says for how many seconds this worker has been claiming without interruption."""
        self._engine = engine
        self._kinds = [kind for kind in kinds if kind.startswith("slack.")]
        self._metrics = metrics
        self._max_vt_age = max_vt_age
        self._interval = interval
        self._claiming_for = claiming_for
        self._outage = Outage(log, "sweep")

    async def run(self) -> None:
        """Sweeps until cancelled, at intervals with jitter so that replicas do not sweep in step."""
        while True:
            await asyncio.sleep(jittered(self._interval))
            try:
                await self._sweep()
                self._outage.is_over()
            except UNAVAILABLE as error:
                self._outage.goes_on(error)
            except DatabaseError as error:
                log.error("sweep failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data

    async def _sweep(self) -> None:
        await self._engine.free_groups()
        by_age = bool(self._kinds) and self._claiming_for() >= self._max_vt_age.total_seconds()
        swept, mend = 1, True
        while swept:
            swept = await self._engine.sweep_events(
                max_vt_age=self._max_vt_age,
                kinds=self._kinds,
                by_age=by_age,
                limit=BATCH,
                mend=mend,
            )
            mend = False
            if swept:
                self._metrics.expired(swept)
                log.info("events expired", count=swept)
