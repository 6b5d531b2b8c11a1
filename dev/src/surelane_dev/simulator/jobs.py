"""Read the status of delivered events from the queue, if there is a database."""

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

from surelane.calls import Calls, Pool
from surelane.errors import SurelaneError
from surelane_dev.simulator.posting.delivery import Delivery
from surelane_service.logs import get_logger
from surelane_service.pool import close_pool, create_pool

EVERY = timedelta(milliseconds=500)
AFTER_FAILURE = timedelta(seconds=5)
LOOKED_FOR = timedelta(minutes=1)
ASKED_AT_ONCE = 200
OPEN = frozenset({"pending", "scheduled", "running"})

_SELECT = """
select item_key, id, status, attempts, max_attempts, error, reason
from agent.job where item_key = any($1::text[])
"""

_log = get_logger("simulator.jobs")


class JobWatch:
    """Ask for the status of each delivered event until it is final, and report each change."""

    def __init__(
        self, url: str, deliveries: Mapping[str, Delivery], changed: Callable[[Delivery], None]
    ) -> None:
        self._url = url
        self._deliveries = deliveries
        self._changed = changed

    async def run(self) -> None:
        try:
            pool = await create_pool(self._url, service="surelane-simulator", max_size=1)
        except ValueError:
            _log.warning("the database's address cannot be used; the page shows no status of the queue")
            return
        try:
            while True:
                pause = EVERY if await self._look(pool) else AFTER_FAILURE
                await asyncio.sleep(pause.total_seconds())
        finally:
            await close_pool(pool)

    async def _look(self, pool: Pool) -> bool:
        asked = [d for d in reversed(list(self._deliveries.values())) if _unsettled(d)][:ASKED_AT_ONCE]
        if not asked:
            return True
        try:
            rows = await Calls(pool).fetch(_SELECT, [key for delivery in asked for key in delivery.keys])
        except SurelaneError as error:
            _log.debug("the queue's status cannot be read", reason=str(error))
            return False
        found = {row["item_key"]: dict(row) for row in rows}
        for delivery in asked:
            job = next((found[key] for key in delivery.keys if key in found), None)
            if job is not None and delivery.job != job:
                delivery.job = job
                self._changed(delivery)
        return True


def _unsettled(delivery: Delivery) -> bool:
    if delivery.job is not None:
        return delivery.job["status"] in OPEN
    # Events that ingest ignores never reach the queue: stop asking after a while.
    late = time.time() - LOOKED_FOR.total_seconds()
    return delivery.state == "delivered" and not delivery.own_message and delivery.attempts[-1].at > late
