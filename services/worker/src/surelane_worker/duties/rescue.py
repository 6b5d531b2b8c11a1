"""The rescue: frees the events of workers that crashed, when a worker starts and every few minutes."""

import asyncio
from datetime import timedelta

from surelane_service.engine import DEAD_FOR, Engine
from surelane_service.logs import get_logger
from surelane_service.pool import UNAVAILABLE, DatabaseError
from surelane_worker.handling.retry import jittered

RETRY = timedelta(seconds=1)

log = get_logger("surelane_worker.duties.rescue")


async def rescue(engine: Engine) -> None:
    """Rescues at once, then every five minutes, until cancelled."""
    while True:
        pause = DEAD_FOR
        try:
            rescued = await engine.rescue_events(DEAD_FOR)
            if rescued:
                log.warning("events of dead workers freed", count=rescued)
        except UNAVAILABLE:
            pause = RETRY  # what claims says so
        except DatabaseError as error:
            log.error("rescue failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
        await asyncio.sleep(jittered(pause))
