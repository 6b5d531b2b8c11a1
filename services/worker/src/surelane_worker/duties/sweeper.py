"""Move exhausted and expired events to history, about once a minute."""

import asyncio
from collections.abc import Callable, Sequence

from surelane_service.engine import Engine
from surelane_service.logs import get_logger
from surelane_service.pool import UNAVAILABLE, DatabaseError
from surelane_worker.handling.retry import jittered
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.readiness import Outage
from surelane_worker.settings import WorkerSettings

BATCH = 1000

log = get_logger("surelane_worker.duties.sweeper")


class Sweeper:
    """Sweeps exhausted events of every kind, and old Slack events of the kinds that this worker handles.

    It sweeps by age only after this worker has been claiming for that age. So an outage of the workers or of the
    database never empties the backlog that it caused. Attempts count against the maximum stored with an event or its
    kind, because another team's kinds have other maxima.
    """

    def __init__(
        self,
        engine: Engine,
        settings: WorkerSettings,
        kinds: Sequence[str],
        metrics: Metrics,
        claiming_for: Callable[[], float],
    ) -> None:
        """``claiming_for`` returns for how many seconds this worker has been claiming without interruption."""
        self._engine = engine
        self._kinds = [kind for kind in kinds if kind.startswith("slack.")]
        self._metrics = metrics
        self._max_vt_age = settings.max_vt_age
        self._interval = settings.sweep_interval
        self._claiming_for = claiming_for
        self._outage = Outage(log, "sweep")

    async def run(self) -> None:
        """Sweep until cancelled, at intervals with jitter so that replicas do not sweep at the same time."""
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
