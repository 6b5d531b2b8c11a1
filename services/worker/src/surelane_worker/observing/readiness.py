"""Decide whether the worker can work now: ``/readyz`` answers with it, and logs report outages and refusals."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from surelane.calls import Calls, Pool
from surelane.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    SettingsError,
    SurelaneError,
    TransientConflict,
    described,
    told,
)
from surelane_service.compatibility import schema_unfit
from surelane_service.engine import Engine
from surelane_service.lifecycle import sleep_unless
from surelane_service.logs import Logger, get_logger

PAUSE = timedelta(seconds=0.5)
STEADY = 2.0
"""Seconds without a failure after which an outage is logged as over. A full disk refuses some calls, not all."""

_MOST_CONNECTIONS = """
select least(current_setting('max_connections')::int4 - current_setting('superuser_reserved_connections')::int4
, (select nullif(datconnlimit, -1) from pg_catalog.pg_database where datname = pg_catalog.current_database())
, (select nullif(rolconnlimit, -1) from pg_catalog.pg_roles where rolname = session_user and not rolsuper))
"""

log = get_logger("surelane_worker.observing.readiness")


async def why_unready(engine: Engine, stop: asyncio.Event, failing: Callable[[], str | None]) -> str | None:
    """Return why the worker cannot work: it stops, its schema does not fit, or its claims are ``failing``."""
    if stop.is_set():
        return "stopping"
    reason = await schema_unfit(engine.schema_version())
    return reason or failing()


class Outage:
    """Logs an outage of the database twice: when it begins, and when calls have succeeded again for a while."""

    def __init__(self, log: Logger, what: str) -> None:
        """``what`` needs the database: ``claims``, ``settles``, …"""
        self._log = log
        self._what = what
        self._logged = False
        self._ending: asyncio.TimerHandle | None = None
        self.on = False
        """Whether the database failed to answer the last time."""
        self.why = ""
        """What it told then, in one line."""

    def goes_on(self, error: BaseException) -> None:
        self.on, self.why = True, told(error)
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if not self._logged:
            self._log.warning("database unavailable", waiting=self._what, **described(error))
            self._logged = True

    def is_over(self) -> None:
        if self.on:
            self._ending = asyncio.get_running_loop().call_later(STEADY, self._end)
        self.on = False

    def _end(self) -> None:
        self._log.info("database available again", resumed=self._what)
        self._logged, self._ending = False, None


@contextmanager
def excused(log: Logger, failed: str, outage: Outage | None = None, **about: str) -> Iterator[None]:
    """Leave the block without an error where the database refused a call or was away: its caller tries again.

    A refusal is logged as ``failed``, with ``about`` and what the server told. ``outage`` notes whether the database is
    there; by default the claimer's does.
    """
    try:
        yield
    except DatabaseUnavailable as error:
        if outage is not None:
            outage.goes_on(error)
    except DatabaseRefused as error:
        tell = log.info if isinstance(error, TransientConflict) else log.error
        tell(failed, **about, **described(error))
        if outage is not None:
            outage.why = told(error)
    else:
        if outage is not None:
            outage.is_over()


async def until_schema_fits(engine: Engine, stop: asyncio.Event) -> None:
    """Wait until the database is up and serves this version, or ``stop`` is set. Log each new reason to wait."""
    logged = None
    while (reason := await schema_unfit(engine.schema_version())) is not None and not stop.is_set():
        if reason != logged:
            log.warning("waiting for the database", reason=reason)
        logged = reason
        await sleep_unless(stop, PAUSE)


async def require_connections(pool: Pool, needed: int) -> None:
    """Raise SettingsError where the server gives this login fewer connections than a worker may need at once.

    With too few of them, those that wait for events would hold back settles and heartbeats.
    """
    try:
        most = await Calls(pool).fetchval(_MOST_CONNECTIONS)
    except SurelaneError:
        return  # the claims say what is wrong
    if most is not None and most < needed:
        raise SettingsError(
            f"a worker needs {needed} connections, and this login gets {most} at most: raise the connection limit of"
            " the role or the database, or max_connections; or connect through a pooler"
        )
