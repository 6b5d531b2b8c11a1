"""The duties of a worker besides running handlers: announce, fire schedules, sweep, and drop for good.

:func:`beside` runs them, and restarts a duty that crashed.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, ClassVar

from surelane.encryption.keys import SealedError
from surelane.errors import Conflict, DatabaseRefused, DatabaseUnavailable, TransientConflict
from surelane_service.cron import Cron, DueCron, due_times, read_catch_up
from surelane_service.durations import jittered, parse_duration
from surelane_service.engine import DEAD_FOR, Engine
from surelane_service.lifecycle import sleep_unless
from surelane_service.logs import get_logger
from surelane_service.pool import Listener
from surelane_worker.handling.handler import Schedule
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.readiness import Outage, excused
from surelane_worker.sessions import Heartbeats, Introduction
from surelane_worker.worker_settings import WorkerSettings

RETRY = timedelta(seconds=1)
"""The pause after a failure."""
BATCH = 1000
"""Events per statement of a sweep, at most."""
AGAIN = timedelta(minutes=5)
"""The pause between announcements. Another transaction's lock may have kept a maximum out: the next one stores it."""
FALLBACK = 20
"""Passes of the responder or the deputy for each one of another worker, which is needed only if they hang."""

FIRST = timedelta(minutes=2)
"""The pause before a worker first drops anything: a worker that fails at its start changes nothing."""
PAUSE = timedelta(hours=1)
BLOCKED = timedelta(minutes=5)
"""The pause after a pass that another transaction or an outage stopped."""
BREATH = 0.05
"""Seconds between steps, which leave the connection to sweeps and rescues."""
WAIT = 1.0
"""Seconds between looks at events that have not ended yet."""
PATIENCE = 300
"""Most such looks of one pass."""
FAREWELL = 5.0
"""Seconds that a stopping worker waits for the database to take it off the list."""

RESTART = 1.0
"""Seconds until a crashed duty starts again. They double each time, up to a minute."""
LONGEST_RESTART = 60.0

Duty = Callable[[], Coroutine[Any, Any, None]]

log = get_logger("surelane_worker.duties")


@dataclass(eq=False)
class Announcer:
    """Keeps a worker on the list of live workers, and takes it off at its end.

    Polls bring its heartbeats after that. It announces itself again if they did not, or if it was taken off the list.
    """

    worker: Introduction
    listener: Listener
    """Its connection announces."""
    engine: Engine
    """Takes the worker off the list."""
    clock_offset: Callable[[], Awaitable[timedelta | None]]
    """Returns how far this worker's clock is ahead of the database's; ``None`` until it is measured."""
    heartbeats: Heartbeats
    _announced: bool = False

    async def run(self) -> None:
        """Announce at once, whenever heartbeats are missing, and every five minutes, until cancelled."""
        while True:
            if await self._announce():
                await self.heartbeats.missing(jittered(AGAIN))
            else:
                await asyncio.sleep(jittered(RETRY))

    async def retire(self) -> None:
        """Take the worker off the list, unless claims stand under its name: others end those of a lost session.

        Close the listener first: a statement of its connection could list the worker again.
        """
        try:
            async with asyncio.timeout(FAREWELL):
                await self.engine.retire_worker(self.worker.name)
        except (DatabaseUnavailable, DatabaseRefused, TimeoutError) as error:
            log.info("could not retire; the worker counts as dead after 90 s", error=type(error).__name__)

    async def _announce(self) -> bool:
        """Announce once. Return whether the database took it, or whether trying again at once is of no use."""
        try:
            offset = await self.clock_offset()
            async with self.listener.connection() as connection:
                await self.worker.announce(Engine(connection), offset)
                if not self._announced:
                    await Engine(connection).free_groups()
                self._announced = True
        except (DatabaseUnavailable, TransientConflict):
            return False  # the claimer logs the outage
        except DatabaseRefused as error:
            log.error("announcement failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
        self.heartbeats.sent(announced=True)
        return True


@dataclass(eq=False)
class Scheduler:
    """Stores the schedules that come with the handlers, then fires every schedule that is due.

    Every worker tries, and the database lets one of them fire. The worker's polls say when the next schedule is due.
    """

    engine: Engine
    declared: Sequence[Schedule]
    metrics: Metrics
    retry: timedelta = RETRY
    """The pause after a failure, and the shortest pause between two looks at the schedules."""

    def __post_init__(self) -> None:
        self._declared = list(self.declared)
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
            await asyncio.sleep(self.retry.total_seconds())
            if succeeded:
                await self._until_due()

    async def _attempt(self) -> bool:
        try:
            with excused(log, "schedules failed", self._outage):
                await self._declare()
                await self._fire_due()
                return True
        except SealedError as error:
            log.error("schedules failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
        return False

    async def _declare(self) -> None:
        while self._declared:
            declared = self._declared[0]
            given = asdict(declared) | {"jitter": parse_duration(declared.jitter)}
            await self.engine.set_cron(**given, paused=None)
            self._declared.pop(0)

    async def _until_due(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._due is None or self._due > clock():
            self._changed.clear()
            await sleep_unless(self._changed, None if self._due is None else self._due - clock())

    async def _fire_due(self) -> None:
        self._changed.clear()
        while any([await self._fire(due) for due in await self.engine.due_cron()]):
            pass
        seconds = await self.engine.next_cron()
        if not self._changed.is_set():  # what was told meanwhile is newer
            self.due_in(seconds)

    async def _fire(self, due: DueCron) -> bool:
        """Fire a due schedule once. Return whether it has more missed times than one firing takes."""
        try:
            cron = Cron(due.schedule, due.time_zone, due.jitter, due.name)
            times, following = due_times(cron, read_catch_up(due.catch_up), due.next_at, due.now)
        except ValueError as error:
            self._report_unreadable(due, error)
            return False
        fired = await self.engine.fire_cron(due.name, due.next_at, times, following)
        if fired:
            self.metrics.sent([due.kind] * fired)
            log.info("schedule fired", schedule=due.name, jobs=fired)
        return following <= due.now

    def _report_unreadable(self, due: DueCron, error: ValueError) -> None:
        """Log once per schedule that it was edited by hand into something unreadable, or lost its time zone."""
        known = (due.name, due.schedule, due.time_zone)
        if known not in self._unreadable:
            self._unreadable.add(known)
            log.error("schedule cannot be read", schedule=due.name, reason=str(error))


@dataclass(eq=False)
class Sweeper:
    """Sweeps exhausted events of every kind, and old Slack events of the kinds that this worker handles.

    Before that it ends the claims of workers that sent no heartbeat for five minutes (:data:`DEAD_FOR`).

    It sweeps by age only after this worker has been claiming for that age. So an outage of the workers or of the
    database never empties the backlog that it caused. Attempts count against the maximum stored with an event or its
    kind, because another team's kinds have other maxima.
    """

    engine: Engine
    settings: WorkerSettings
    kinds: Sequence[str]
    metrics: Metrics
    claiming_for: Callable[[], float]
    """Returns for how many seconds this worker has been claiming without interruption."""
    stands_by: Callable[[], bool]
    """Returns whether this worker does what one or two may do for all."""

    def __post_init__(self) -> None:
        self._outage = Outage(log, "sweep")

    async def run(self) -> None:
        """Rescue at once, then sweep until cancelled. Intervals have jitter: replicas do not act at the same time."""
        with excused(log, "rescue failed", self._outage):
            await self._rescue()
        left_out = 0
        while True:
            await asyncio.sleep(jittered(self.settings.sweep_interval))
            left_out += 1
            if left_out >= FALLBACK or self.stands_by():
                left_out = 0
                with excused(log, "sweep failed", self._outage):
                    await self._sweep()

    async def _rescue(self) -> None:
        rescued = await self.engine.rescue_events(DEAD_FOR)
        if rescued:
            log.warning("events of dead workers freed", count=rescued)

    async def _sweep(self) -> None:
        await self._rescue()
        await self.engine.free_groups()
        kinds, age = [kind for kind in self.kinds if kind.startswith("slack.")], self.settings.max_vt_age
        by_age = bool(kinds) and self.claiming_for() >= age.total_seconds()
        swept, mend = 1, True
        while swept:
            swept = await self.engine.sweep_events(
                max_vt_age=age, kinds=kinds, by_age=by_age, limit=BATCH, mend=mend
            )
            mend = False
            if swept:
                self.metrics.expired(swept)
                log.info("events expired", count=swept)


@dataclass(eq=False)
class Hourly(ABC):
    """Drops something for good, in a pass of bounded steps every hour, where this worker leads."""

    what: ClassVar[str]
    """For the log."""

    engine: Engine
    older_than: timedelta | None
    """Drop what is older; ``None``: nothing."""
    leads: Callable[[], bool]
    """Returns whether this worker does what one worker may do for all."""
    first: timedelta = FIRST
    """The pause before the first pass."""

    def __post_init__(self) -> None:
        self._outage = Outage(log, self.what)

    @abstractmethod
    async def pass_once(self, older_than: timedelta) -> bool:
        """Do one pass. Return whether something blocked it."""

    async def run(self) -> None:
        """Do the first pass soon, and then one every hour, until cancelled."""
        if self.older_than is None:
            return
        pause, left_out = self.first, 0
        while True:
            await asyncio.sleep(jittered(pause))
            pause, left_out = PAUSE, left_out + 1
            if left_out < FALLBACK and not self.leads():
                continue
            left_out, blocked = 0, True
            with excused(log, f"{self.what} failed", self._outage), suppress(Conflict):
                blocked = await self.pass_once(self.older_than)
            if blocked:
                pause = BLOCKED


class Retention(Hourly):
    """Drops history that is older than this worker's setting, with its steps and signals.

    Workers may have different settings: the shortest one counts, because what it drops is gone for all.
    """

    what = "retention"

    async def pass_once(self, older_than: timedelta) -> bool:
        """Drop what is old enough, in bounded steps. Return whether another transaction blocked it."""
        after: int | None = 0
        dropped, blocked = 0, False
        while after is not None:
            step = await self.engine.drop_history(older_than, after)
            after, dropped, blocked = step.after, dropped + step.dropped, blocked or step.blocked
            await asyncio.sleep(BREATH)
        if dropped:
            log.info("old history dropped", chunks_or_rows=dropped, older_than=str(older_than))
        if blocked:
            log.warning("history is locked by another transaction; retention tries again in five minutes")
        return blocked


@dataclass(eq=False)
class Uninstalls(Hourly):
    """Erases what belongs to owners that removed the app for longer than a grace, and did not install it again."""

    what = "erasing after uninstalls"

    name: str = ""
    """The worker's, for the receipt."""

    async def pass_once(self, older_than: timedelta) -> bool:
        """Erase what is due, in bounded steps. Return whether events that do not end stopped it."""
        waits = 0
        while (step := await self.engine.erase_uninstalled(older_than, f"worker {self.name}")) is not None:
            if step.done:
                # The key is in the log alone: it proves whose erasure the receipt is about.
                named = {"owner": step.owner, "receipt": step.receipt, "key": step.key}
                log.info("erased what belonged to an owner that removed the app", **named)
            waits += step.waiting > 0
            if waits > PATIENCE:
                log.warning("events of an owner that removed the app do not end", owner=step.owner)
                return True
            await asyncio.sleep(WAIT if step.waiting else BREATH)
        return False


@asynccontextmanager
async def beside(*duties: Duty, restart: float = RESTART) -> AsyncIterator[None]:
    """Run duties for the length of the block. A duty that crashes is logged and starts again; the others go on.

    ``restart``: seconds until a crashed duty starts again, the first time.
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
