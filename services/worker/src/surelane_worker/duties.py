"""The duties of a worker besides running handlers: fire schedules, sweep, part crowds, drop for good."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, ClassVar

from surelane.codec import SealedError
from surelane.errors import (
    Conflict,
    DatabaseRefused,
    DatabaseUnavailable,
    TransientConflict,
    refuses_call,
    told,
)
from surelane.events import Event
from surelane_service.common.durations import jittered, parse_duration
from surelane_service.cron import Cron, DueCron, due_times, read_catch_up
from surelane_service.engine import DEAD_FOR, Engine
from surelane_service.lifecycle import sleep_unless
from surelane_service.logs import get_logger
from surelane_worker.handling.handler import DeclaredSchedule
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.readiness import Outage, excused
from surelane_worker.worker_settings import WorkerSettings

RETRY = timedelta(seconds=1)

FIRST = timedelta(minutes=2)
"""The pause before a worker first drops anything: a worker that fails at its start changes nothing."""
HOURLY = timedelta(hours=1)
RARELY = 60.0
"""The longest pause between two looks at the dead rows, in seconds."""
BREATH = 0.05
"""Seconds between steps, which leave the connection to sweeps and rescues."""
PATIENCE = 300
"""Most looks of one pass, a second apart, at events that have not ended yet."""

LONG = timedelta(seconds=2)
"""The wait of an event from which on its kind is looked at. The database uses the same number."""


Duty = Callable[[], Coroutine[Any, Any, None]]

log = get_logger("surelane_worker.duties")


@dataclass(eq=False)
class Scheduler:
    """Stores the schedules that come with the handlers, then fires every schedule that is due.

    Every worker tries, and the database lets one of them fire. The worker's polls say when the next schedule is due.
    """

    engine: Engine
    declared: Sequence[DeclaredSchedule]
    metrics: Metrics
    retry: timedelta = RETRY
    """The pause after a failure, and at least between two looks at the schedules."""

    def __post_init__(self) -> None:
        self._declared = list(self.declared)
        self._problems: dict[str, str] = {}
        """Why each schedule failed last. The log says it once."""
        self._outage = Outage(log, "schedules")
        self._due: float | None = None
        self._changed = asyncio.Event()
        self._again = False
        """Whether one failed that the server may take a moment later."""

    def due_in(self, seconds: float | None) -> None:
        """Set when the next schedule is due: in so many seconds, or never if ``None``."""
        self._due = None if seconds is None else asyncio.get_running_loop().time() + seconds
        self._changed.set()

    async def run(self) -> None:
        """Fire schedules until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            succeeded = await self._attempt()
            await asyncio.sleep(self.retry.total_seconds())
            while succeeded and (self._due is None or self._due > clock()):
                self._changed.clear()
                await sleep_unless(self._changed, None if self._due is None else self._due - clock())

    async def _attempt(self) -> bool:
        with excused(log, "schedules failed", self._outage):
            self._declared = [each for each in self._declared if not await self._declare(each)]
            return await self._fire_due() and not self._declared
        return False

    async def _declare(self, declared: DeclaredSchedule) -> bool:
        """Store a declared schedule. Return whether that is done with: one that is refused fires nothing."""
        given = asdict(declared) | {"jitter": parse_duration(declared.jitter)}
        try:
            await self.engine.set_cron(**given, paused=None)
        except (DatabaseRefused, SealedError) as error:
            self._tell(declared.name, told(error))
            return refuses_call(error)
        return True

    async def _fire_due(self) -> bool:
        """Fire what is due. Return whether nothing is to be tried again at once."""
        self._changed.clear()
        self._again = False
        while any([await self._fire(due) for due in await self.engine.due_cron()]):
            pass
        seconds = await self.engine.next_cron()
        if not self._changed.is_set():  # what was told meanwhile is newer
            self.due_in(seconds)
        return not self._again

    async def _fire(self, due: DueCron) -> bool:
        """Fire a due schedule once. Return whether it has more missed times than one firing takes.

        One that fails is marked with the reason, and the others go on. If it is itself at fault, it is due again at its
        next time; else at once, as the server may be repaired. One that cannot be read stays due, and fires nothing.
        """
        following = None
        try:
            cron = Cron(due.schedule, due.time_zone, due.jitter, due.name)
            times, following = due_times(cron, read_catch_up(due.catch_up), due.next_at, due.now)
            fired = await self.engine.fire_cron(due.name, due.next_at, times, following)
        except (DatabaseUnavailable, TransientConflict):
            raise
        except (DatabaseRefused, ValueError, ArithmeticError) as error:
            problem = told(error) if isinstance(error, DatabaseRefused) else str(error)
            self._tell(due.name, problem)
            own = refuses_call(error) or following is None
            try:
                await self.engine.note_cron(due.name, due.next_at, problem, following if own else None)
            except DatabaseRefused:  # its row refuses that, too: the log has said it
                own = False
            self._again = self._again or not own
            return False
        if fired:
            self._problems.pop(due.name, None)
            self.metrics.sent([due.kind] * fired)
            log.info("schedule fired", schedule=due.name, jobs=fired)
        return following <= due.now

    def _tell(self, name: str, problem: str) -> None:
        """Log a schedule's problem once."""
        if self._problems.get(name) != problem:
            self._problems[name] = problem
            log.error("schedule failed", schedule=name, reason=problem)


@dataclass(eq=False)
class Upkeep(ABC):
    """Does something for all workers in passes where this worker leads. Others do every twentieth, in case it hangs."""

    what: ClassVar[str]
    """For the log."""

    engine: Engine
    leads: Callable[[], bool]
    """Returns whether this worker does what one or two may do for all."""

    def __post_init__(self) -> None:
        self._outage = Outage(log, self.what)

    @abstractmethod
    async def pass_once(self) -> bool:
        """Do one pass. Return whether something blocked it."""

    async def repeat(self, every: timedelta, first: timedelta) -> None:
        """Do the first pass after ``first``, then one ``every`` so often, or soon if it was blocked."""
        pause, left_out = first, 0
        while True:
            await asyncio.sleep(jittered(pause))
            pause, left_out = every, left_out + 1
            if left_out < 20 and not self.leads():
                continue
            left_out, blocked = 0, True
            with excused(log, f"{self.what} failed", self._outage):
                try:
                    blocked = await self.pass_once()
                except Conflict:
                    log.info("another transaction holds a lock; it is tried again", duty=self.what)
            if blocked:
                pause = min(every, timedelta(minutes=5))  # by another transaction or an outage


@dataclass(eq=False)
class Sweeper(Upkeep):
    """Sweeps exhausted events of every kind, and old Slack events of the kinds that this worker handles.

    Before that it ends the claims of workers that sent no heartbeat for five minutes (:data:`DEAD_FOR`).

    It sweeps by age only after this worker has been claiming for that age. So an outage of the workers or of the
    database never empties the backlog that it caused. Attempts count against the maximum stored with an event or its
    kind, because another team's kinds have other maxima.
    """

    what = "sweep"

    settings: WorkerSettings
    kinds: Sequence[str]
    metrics: Metrics
    claiming_for: Callable[[], float]
    """Returns for how many seconds this worker has been claiming without interruption."""

    async def run(self) -> None:
        """Rescue at once, then sweep until cancelled."""
        with excused(log, "rescue failed", self._outage):
            await self._rescue()
        await self.repeat(self.settings.sweep_interval, self.settings.sweep_interval)

    async def _rescue(self) -> None:
        rescued = await self.engine.rescue_events(DEAD_FOR)
        if rescued:
            log.warning("events of dead workers freed", count=rescued)

    async def pass_once(self) -> bool:
        await self._rescue()
        await self.engine.free_groups()
        kinds, age = [kind for kind in self.kinds if kind.startswith("slack.")], self.settings.max_vt_age
        by_age = bool(kinds) and self.claiming_for() >= age.total_seconds()
        swept, mend = 1, True
        while swept:
            swept = await self.engine.sweep_events(
                max_vt_age=age,
                kinds=kinds,
                by_age=by_age,
                limit=1000,
                mend=mend,
            )
            mend = False
            if swept:
                self.metrics.expired += swept
                log.info("events expired", count=swept)
        return False


@dataclass(eq=False)
class Vacuum:
    """Vacuums the live queue while this worker leads: autovacuum looks once a minute, as a rule."""

    engine: Engine
    leads: Callable[[], bool]

    async def run(self) -> None:
        outage, pause = Outage(log, "vacuum"), RARELY
        while True:
            await asyncio.sleep(pause)
            with excused(log, "vacuum failed", outage):
                pause = await self.look(pause) if self.leads() else RARELY

    async def look(self, pause: float) -> float:
        """Vacuum if it is worth it. Return the seconds until it may be so again, which were ``pause`` before."""
        clock = asyncio.get_running_loop().time
        began, dead = clock(), await self.engine.dead_share() or 0.0
        if dead >= 1:
            await self.engine.vacuum()
            dead -= await self.engine.dead_share() or 0.0  # one that is held back removes none
        # It takes a fifth of the time, at most.
        return min(RARELY, max(1.0, 4 * (clock() - began), pause / max(dead, 0.5)))


@dataclass(eq=False)
class Retention(Upkeep):
    """Drops history that is older than this worker's setting, with its steps and signals, every hour.

    Workers may have different settings: the shortest one counts, because what it drops is gone for all.
    """

    what = "retention"

    older_than: timedelta

    async def run(self) -> None:
        await self.repeat(HOURLY, FIRST)

    async def pass_once(self) -> bool:
        after: int | None = 0
        dropped, blocked = 0, False
        while after is not None:
            step = await self.engine.drop_history(self.older_than, after)
            after, dropped, blocked = step.after, dropped + step.dropped, blocked or step.blocked
            await asyncio.sleep(BREATH)
        if dropped:
            log.info("old history dropped", chunks_or_rows=dropped, older_than=str(self.older_than))
        if blocked:
            log.warning("history is locked by another transaction; retention tries again in five minutes")
        return blocked


@dataclass(eq=False)
class Uninstalls(Upkeep):
    """Erases what belongs to owners that removed the app for longer than a grace, and did not install it again."""

    what = "erasing after uninstalls"

    grace: timedelta
    name: str
    """The worker's, for the receipt."""

    async def run(self) -> None:
        await self.repeat(HOURLY, FIRST)

    async def pass_once(self) -> bool:
        looks, left, waits = 0, set[str](), set[str]()
        while True:
            step = await self.engine.erase_uninstalled(self.grace, f"worker {self.name}", left | waits)
            if step is None:  # all others are done
                if looks >= PATIENCE and waits:
                    log.warning(
                        "runs do not end; a day after an erasure began it ends them", owners=sorted(waits)
                    )
                if looks >= PATIENCE or not waits:
                    return bool(waits)
                looks += 1
                waits.clear()
                await asyncio.sleep(1.0)
                continue
            if step.done:
                # The key is in the log alone: it proves whose erasure the receipt is about.
                named = {"owner": step.owner, "receipt": step.receipt, "key": step.key}
                log.info("erased what belonged to an owner that removed the app", **named)
            if step.left:
                left.add(step.owner)
                log.error(
                    "rows cannot be erased; its receipt names them", owner=step.owner, receipt=step.receipt
                )
            elif step.waiting:
                waits.add(step.owner)
            await asyncio.sleep(BREATH)


@dataclass(eq=False)
class CrowdSplitter:
    """Give a workspace with a large backlog of a kind lanes of its own, so that it does not hold up the others.

    Claims report events that have waited long. The database then finds their workspaces and moves them
    (``agent.share_kind``). Every worker tries, and the database lets one at a time do it.
    ``lease``, for which claims stand, tells when an event was claimed.
    """

    engine: Engine
    lease: timedelta

    def __post_init__(self) -> None:
        self._kinds: set[str] = set()
        self._reason = asyncio.Event()

    def claimed(self, events: Sequence[Event]) -> None:
        """Note a claim. If its first event has waited long, look at its kind soon."""
        first = events[0]
        if first.prior_vt is not None and first.vt - first.prior_vt > self.lease + LONG:
            self._kinds.add(first.kind)
            self._reason.set()

    async def run(self) -> None:
        """Look at kinds until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._reason.wait()
            self._reason.clear()
            kinds, self._kinds = self._kinds, set()
            began, pause = loop.time(), 1.0  # between two looks while no events are being moved
            for kind in kinds:
                again = None
                with excused(log, "could not separate workspaces' backlogs", kind=kind):
                    # If it fails, the next claim of an old event brings the kind.
                    again = await self.engine.share_kind(kind)
                if again is not None:
                    self._kinds.add(kind)
                    self._reason.set()
                    pause = min(pause, again.total_seconds())
            # While events are being moved, steps take at most a quarter of the time.
            await asyncio.sleep(max(pause, 3 * (loop.time() - began)))


@asynccontextmanager
async def beside(*duties: Duty, restart: float = 1.0) -> AsyncIterator[None]:
    """Run duties for the length of the block. One that crashes starts again, after ``restart`` seconds at first."""
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
        pause = min(pause * 2, 60.0)
