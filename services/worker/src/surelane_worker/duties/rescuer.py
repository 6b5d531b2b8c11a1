"""Free the events of workers that crashed."""

import asyncio
from datetime import timedelta

from surelane_service.engine import DEAD_FOR, Engine
from surelane_service.logs import get_logger
from surelane_service.pool import UNAVAILABLE, DatabaseError
from surelane_worker.handling.retry import jittered

RETRY = timedelta(seconds=1)

log = get_logger("surelane_worker.duties.rescuer")


class Rescuer:
    """Ends the claims of workers that sent no heartbeat for five minutes (:data:`DEAD_FOR`)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run(self) -> None:
        """Rescue at once and then every five minutes, until cancelled."""
        while True:
            pause = await self._rescue()
            await asyncio.sleep(jittered(pause))

    async def _rescue(self) -> timedelta:
        """Rescue once. Return the pause before the next rescue."""
        try:
            rescued = await self._engine.rescue_events(DEAD_FOR)
        except UNAVAILABLE:
            return RETRY  # the claimer logs the outage
        except DatabaseError as error:
            log.error("rescue failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
        else:
            if rescued:
                log.warning("events of dead workers freed", count=rescued)
        return DEAD_FOR
