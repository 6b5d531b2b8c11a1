"""Whether the worker can work now: what ``/readyz`` answers."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from surelane_service.compatibility import unfit
from surelane_service.engine import Engine
from surelane_service.lifecycle import sleep_unless
from surelane_service.logs import get_logger
from surelane_service.pool import UNAVAILABLE

BUDGET = 2.0
PAUSE = timedelta(seconds=0.5)

log = get_logger("surelane_worker.observing.readiness")


class Readiness:
    """Ready: not stopping, a database that answers and whose schema serves this version, and a loop that claims."""

    def __init__(self, engine: Engine, stopping: Callable[[], bool], claiming: Callable[[], bool]) -> None:
        self._engine = engine
        self._stopping = stopping
        self._claiming = claiming

    async def unready(self) -> str | None:
        """Why the worker cannot work, or ``None``."""
        if self._stopping():
            return "stopping"
        reason = await schema_unfit(self._engine)
        if reason is None and not self._claiming():
            return "claims fail"
        return reason


async def schema_unfit(engine: Engine) -> str | None:
    """Why the database cannot be worked with, or ``None``."""
    try:
        async with asyncio.timeout(BUDGET):
            version, min_compatible = await engine.schema_version()
    except UNAVAILABLE as error:
        return f"the database is unavailable: {type(error).__name__}"
    except Exception as error:  # noqa: BLE001 - a probe answers, whatever is wrong with the schema
        return f"the schema cannot be used: {type(error).__name__}"
    return unfit(version, min_compatible)


async def until_schema_fits(engine: Engine, stop: asyncio.Event) -> None:
    """Waits until the database is there and serves this version, or ``stop`` is set; says why it waits."""
    said = None
    while (reason := await schema_unfit(engine)) is not None and not stop.is_set():
        if reason != said:
            log.warning("waiting for the database", reason=reason)
        said = reason
        await sleep_unless(stop, PAUSE)
