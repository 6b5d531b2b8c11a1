"""The duties of a worker besides running handlers: announce, fire schedules and sweep.

:func:`beside` runs them, and starts one that crashed again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from surelane import __version__
from surelane.encryption.keys import SealedError
from surelane.errors import Conflict, DatabaseRefused, DatabaseUnavailable, TransientConflict
from surelane_service.cron import Cron, DueCron, due_times, read_catch_up
from surelane_service.durations import jittered, parse_duration
from surelane_service.engine import DEAD_FOR, Engine
from surelane_service.logs import get_logger
from surelane_service.pool import Listener
from surelane_worker.handling.handler import Schedule
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.readiness import Outage
from surelane_worker.sessions import Heartbeats
from surelane_worker.worker_settings import WorkerSettings

RETRY = timedelta(seconds=1)
"""The pause after a failure."""
BATCH = 1000
"""Events per statement of a sweep, at most."""
AGAIN = timedelta(minutes=5)
"""The pause between announcements. Another transaction's lock may have kept a maximum out: the next one stores it."""
FALLBACK = 20
"""Sweeps of the responder and the deputy for each one of another worker, which is needed only if both hang."""
FAREWELL = 5.0
"""Seconds that a stopping worker waits for the database to take it off the list."""

RESTART = 1.0
"""Seconds until a crashed duty starts again. They double each time, up to a minute."""
LONGEST_RESTART = 60.0

ClockOffset = Callable[[], Awaitable[timedelta | None]]
"""Returns how far this worker's clock is ahead of the database's; ``None`` until it is measured."""

Duty = Callable[[], Coroutine[Any, Any, None]]

log = get_logger("surelane_worker.duties")


async def declare_limits(
    engine: Engine, name: str, kinds: Sequence[str], limits: Mapping[str, Mapping[str, Any]]
) -> None:
    """Record the limits of a worker's handlers. It claims nothing before, or more than the limit would run.

    Raises:
        DatabaseUnavailable, DatabaseRefused: they are not recorded.
    """
    try:
        changed = await engine.declare_limits(name, kinds, limits)
    except Conflict as error:
        log.warning("nothing is claimed while a limit is locked by another transaction", kinds=list(limits))
        raise DatabaseUnavailable("another transaction has a limit of these handlers locked") from error
    if changed:
        log.info("limits changed", kinds=changed)


class Announcer:
    """Keeps a worker on the list of live workers, and takes it off at its end.

    Polls bring its heartbeats after that. It announces itself again if they did not, or if it was taken off the list.
    """

    def __init__(
        self,
        listener: Listener,
        engine: Engine,
        settings: WorkerSettings,
        kinds: Sequence[str],
        ordered: Sequence[str] | None,
        clock_offset: ClockOffset,
        heartbeats: Heartbeats,
        limits: Mapping[str, Mapping[str, Any]],
        attempts: Mapping[str, int],
    ) -> None:
        """Announce over ``listener``, and retire through ``engine``.

        ``settings.max_attempts`` applies to ``kinds``, and ``limits`` and ``attempts`` to some of them. ``ordered`` are
        the commands and interactions that keep their thread's order; ``None``: there are none at all.
        """
        self._listener = listener
        self._engine = engine
        self._name = settings.name
        self._max_attempts = settings.max_attempts
        self._kinds = kinds
        self._ordered = ordered
        self._limits = limits
        self._attempts = attempts
        self._clock_offset = clock_offset
        self._heartbeats = heartbeats
        self._announced = False

    async def run(self) -> None:
        """Announce at once, whenever heartbeats are missing, and every five minutes, until cancelled."""
        while True:
            if await self._announce():
                await self._heartbeats.missing(jittered(AGAIN))
            else:
                await asyncio.sleep(jittered(RETRY))

    async def retire(self) -> None:
        """Take the worker off the list, unless claims stand under its name: others end those of a lost session.

        Close the listener first: a statement of its connection could list the worker again.
        """
        try:
            async with asyncio.timeout(FAREWELL):
                await self._engine.retire_worker(self._name)
        except (DatabaseUnavailable, DatabaseRefused, TimeoutError) as error:
            log.info("could not retire; the worker counts as dead after 90 s", error=type(error).__name__)

    async def _announce(self) -> bool:
        """Announce once. Return whether the database took it, or whether trying again at once is of no use."""
        try:
            offset = await self._clock_offset()
            async with self._listener.connection() as connection:
                await Engine(connection).announce_worker(
                    self._name, self._kinds, __version__, offset, self._max_attempts, self._attempts
                )
                if self._ordered is not None:
                    await Engine(connection).order_kinds(self._name, self._ordered)
                await declare_limits(Engine(connection), self._name, self._kinds, self._limits)
                if not self._announced:
                    await Engine(connection).free_groups()
                self._announced = True
        except (DatabaseUnavailable, TransientConflict):
            return False  # the claimer logs the outage
        except DatabaseRefused as error:
            log.error("announcement failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
        self._heartbeats.sent(announced=True)
        return True


class Scheduler:
    """Stores the schedules that come with the handlers, then fires every schedule that is due.

    Every worker tries, and the database lets one of them fire. The worker's polls say when the next schedule is due.
    """

    def __init__(
        self, engine: Engine, declared: Sequence[Schedule], metrics: Metrics, *, retry: timedelta = RETRY
    ) -> None:
        """``retry`` is the pause after a failure, and the shortest pause between two looks at the schedules."""
        self._engine = engine
        self._declared = list(declared)
        self._metrics = metrics
        self._retry = retry.total_seconds()
        self._unreadable: set[tuple[str, str, str]] = set()
        self._outage = Outage(log, "schedules")
        self._due: float | None = None
        self._changed = asyncio.Event()

    def due_in(self, seconds: float | None) -> None:
        """Set when the next schedule is due: in so many seconds, or never if ``None``."""
        self._due = None if seconds is None else asyncio.get_running_loop().time() + seconds
        self._changed.set()

    async def run(self) -> None:
        """Fire schedules until cancelled."""
        while True:
            succeeded = await self._attempt()
            await asyncio.sleep(self._retry)
            if succeeded:
                await self._until_due()

    async def _attempt(self) -> bool:
        try:
            await self._declare()
            await self._fire_due()
        except DatabaseUnavailable as error:
            self._outage.goes_on(error)
            return False
        except (DatabaseRefused, SealedError) as error:
            log.error("schedules failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
            return False
        self._outage.is_over()
        return True

    async def _declare(self) -> None:
        while self._declared:
            declared = self._declared[0]
            given = asdict(declared) | {"jitter": parse_duration(declared.jitter)}
            await self._engine.set_cron(**given, paused=None)
            self._declared.pop(0)

    async def _until_due(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._due is None or self._due > clock():
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._due is None else self._due - clock()):
                    await self._changed.wait()

    async def _fire_due(self) -> None:
        self._changed.clear()
        while await self._fire_each():
            pass
        seconds = await self._engine.next_cron()
        if not self._changed.is_set():  # what was told meanwhile is newer
            self.due_in(seconds)

    async def _fire_each(self) -> bool:
        """Fire each due schedule once. Return whether one has more missed times than one firing takes."""
        more = False
        for due in await self._engine.due_cron():
            more = await self._fire(due) or more
        return more

    async def _fire(self, due: DueCron) -> bool:
        try:
            cron = Cron(due.schedule, due.time_zone, due.jitter, due.name)
            times, following = due_times(cron, read_catch_up(due.catch_up), due.next_at, due.now)
        except ValueError as error:
            self._report_unreadable(due, error)
            return False
        fired = await self._engine.fire_cron(due.name, due.next_at, times, following)
        if fired:
            self._metrics.sent([due.kind] * fired)
            log.info("schedule fired", schedule=due.name, jobs=fired)
        return following <= due.now

    def _report_unreadable(self, due: DueCron, error: ValueError) -> None:
        """Log once per schedule that it was edited by hand into something unreadable, or lost its time zone."""
        known = (due.name, due.schedule, due.time_zone)
        if known not in self._unreadable:
            self._unreadable.add(known)
            log.error("schedule cannot be read", schedule=due.name, reason=str(error))


class Sweeper:
    """Sweeps exhausted events of every kind, and old Slack events of the kinds that this worker handles.

    Before that it ends the claims of workers that sent no heartbeat for five minutes (:data:`DEAD_FOR`).

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
        stands_by: Callable[[], bool],
    ) -> None:
        """Keep the arguments.

        Args:
            engine, settings, kinds, metrics: what to sweep with.
            claiming_for: returns for how many seconds this worker has been claiming without interruption.
            stands_by: returns whether this worker does what one or two may do for all.
        """
        self._engine = engine
        self._kinds = [kind for kind in kinds if kind.startswith("slack.")]
        self._metrics = metrics
        self._max_vt_age = settings.max_vt_age
        self._interval = settings.sweep_interval
        self._claiming_for = claiming_for
        self._stands_by = stands_by
        self._outage = Outage(log, "sweep")

    async def run(self) -> None:
        """Rescue at once, then sweep until cancelled. Intervals have jitter: replicas do not act at the same time."""
        await self._attempt(self._rescue)
        left_out = 0
        while True:
            await asyncio.sleep(jittered(self._interval))
            left_out += 1
            if left_out >= FALLBACK or self._stands_by():
                await self._attempt(self._sweep)
                left_out = 0

    async def _attempt(self, step: Duty) -> None:
        try:
            await step()
            self._outage.is_over()
        except DatabaseUnavailable as error:
            self._outage.goes_on(error)
        except DatabaseRefused as error:
            log.error("sweep failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data

    async def _rescue(self) -> None:
        rescued = await self._engine.rescue_events(DEAD_FOR)
        if rescued:
            log.warning("events of dead workers freed", count=rescued)

    async def _sweep(self) -> None:
        await self._rescue()
        await self._engine.free_groups()
        by_age = bool(self._kinds) and self._claiming_for() >= self._max_vt_age.total_seconds()
        swept, mend = 1, True
        while swept:
            swept = await self._engine.sweep_events(
                max_vt_age=self._max_vt_age, kinds=self._kinds, by_age=by_age, limit=BATCH, mend=mend
            )
            mend = False
            if swept:
                self._metrics.expired(swept)
                log.info("events expired", count=swept)


@asynccontextmanager
async def beside(*duties: Duty, restart: float = RESTART) -> AsyncIterator[None]:
    """Run duties for the length of the block. A duty that crashes is logged and starts again; the others go on.

    Args:
        duties: the functions to run.
        restart: seconds until a crashed duty starts again, the first time.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_kept(duty, restart)) for duty in duties]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _kept(duty: Duty, pause: float) -> None:
    while True:
        try:
            await duty()
        except Exception:
            log.exception("duty crashed; it starts again", duty=duty.__qualname__, again_in=pause)
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_RESTART)
