"""Sessions: how workers notice within seconds that another one died, and end its claims.

A worker's session is a lock on the connection over which it claims. PostgreSQL drops the lock as the process dies. The
workers in the first two positions of their kinds look for lost ones, on behalf of the whole fleet. Heartbeats show that
a worker is alive where no connection can hold a session.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from surelane import __version__
from surelane.calls import Connection
from surelane.errors import DatabaseRefused, DatabaseUnavailable, TransientConflict, described, waits
from surelane_service.common.durations import jittered
from surelane_service.engine import Engine
from surelane_service.lifecycle import sleep_unless
from surelane_service.logs import get_logger
from surelane_service.pool import Listener
from surelane_worker.observing.readiness import excused

RETRY = timedelta(seconds=1)
LOOK = 1.5
"""Seconds between looks, at most, while no session is lost."""
LATE = (2.0, 6.0)
"""Seconds after which a worker looks again for claims that the server committed after it cut their connection."""
LOCKED = (5.0,) * 60
"""The same after those, for claims of a process of this name that died: its session hides them from other workers.

Another transaction may have them locked. After five minutes they end, because no heartbeat came.
"""
ALONE = 300.0
"""Seconds between looks while no other worker is known, and until this worker asks itself again whether it watches."""
OUTAGE = 10.0
"""Seconds of grace at least where the database or the network is the likely cause of lost sessions."""
JITTER = 0.1
AGAIN = timedelta(minutes=5)
"""The pause between announcements. Another transaction's lock may have kept a maximum out: the next one stores it."""
FAREWELL = 5.0
"""Seconds that a stopping worker waits for the database to take it off the list."""
HEARTBEAT_PAUSE = 15.0
"""Seconds between two heartbeats, at least, however often the worker polls."""
HEARTBEAT_LATE = timedelta(seconds=65)
"""The longest pause between them: then the worker announces itself. Dead is who sent none for 90 s."""

Lost = tuple[str, int]
"""A worker's name, and the key of the session that it has lost."""

log = get_logger("surelane_worker.sessions")


@dataclass(frozen=True)
class Introduction:
    """What a worker tells the database about itself."""

    name: str
    kinds: Sequence[str]
    ordered: Sequence[str] | None
    """The commands and interactions that keep their thread's order; ``None``: it handles none at all."""
    slots: tuple[int, int]
    """How many handlers it runs at once, and how many besides for commands and interactions."""
    max_attempts: int
    """Of its kinds that are not in ``attempts``."""
    attempts: Mapping[str, int]
    limits: Mapping[str, Mapping[str, Any]]
    unlimited: set[str] = field(default_factory=set)
    """The kinds whose limit the database refuses: none of them is claimed."""

    async def bound(self, engine: Engine) -> None:
        """Record what bounds its claims: before, it would claim more than a limit lets run."""
        await self._limit(engine)
        if self.attempts:
            await engine.declare_attempts(self.name, self.kinds, self.max_attempts, self.attempts)

    async def announce(self, engine: Engine, clock_offset: timedelta | None) -> None:
        """Announce that the worker lives, with all that it said before: another transaction may have kept it out."""
        name, kinds, most = self.name, self.kinds, self.max_attempts
        await engine.announce_worker(name, kinds, __version__, clock_offset, most, self.attempts)
        if self.ordered is not None:
            await engine.order_kinds(name, self.ordered)
        await self._limit(engine)

    async def _limit(self, engine: Engine) -> None:
        try:
            changed = await self._limit_each(engine)
        except DatabaseRefused as error:
            if not waits(error):
                raise
            limited = list(self.limits)
            log.warning("nothing is claimed while a limit is locked by another transaction", kinds=limited)
            raise DatabaseUnavailable("another transaction has a limit of these handlers locked") from error
        if changed:
            log.info("limits changed", kinds=changed)

    async def _limit_each(self, engine: Engine) -> list[str]:
        """Record the limits, each alone if one is refused. Return the kinds whose limit changed."""
        changed, refused = list[str](), set[str]()
        try:
            changed = await engine.declare_limits(self.name, self.kinds, self.limits)
        except DatabaseRefused as all_refused:
            if waits(all_refused):
                raise
            for kind in self.kinds:
                try:
                    changed += await engine.declare_limits(self.name, [kind], self.limits)
                except DatabaseRefused as error:
                    if waits(error):
                        raise
                    refused.add(kind)
                    log.error("a limit is refused, so its kind is not claimed", kind=kind, **described(error))  # noqa: TRY400 - its traceback says no more
        self.unlimited.clear()
        self.unlimited.update(refused)
        return changed


@dataclass(eq=False)
class Session:
    """This worker's own session: opened on each new connection of the listener, and gone when that breaks."""

    worker: Introduction
    listener: Listener
    engine: Engine
    known: Callable[[], Sequence[tuple[int, int]]]
    """Returns the claims that the worker knows of, by event and number."""
    locks: bool = True
    """False behind a transaction pooler: there a connection holds no session, and the worker is listed."""

    def __post_init__(self) -> None:
        self._starts = True
        self._opened = False
        self._left_locked = False
        """Whether claims of a process that died were locked as this one started."""
        self._before: datetime | None = None
        self._reopened = asyncio.Event()
        self._unsettled = asyncio.Event()

    async def open(self, connection: Connection) -> None:
        """Open it on a connection: no claim goes out before others see that this worker lives, and its kinds."""
        engine, worker = Engine(connection), self.worker
        opened = not self.locks or await engine.open_session(worker.name, __version__, starts=self._starts)
        # Not again, though the worker's row was locked: now claims of this process may stand under its name.
        self._starts, locked = False, 0
        if opened and self.locks:
            locked = await engine.locked_claims()
        if opened and await engine.introduce_worker(
            worker.name, __version__, worker.kinds, worker.ordered, worker.slots
        ):
            self._unsettled.clear()
        else:
            self._unsettled.set()
        self._left_locked = self._left_locked or locked > 0
        if self._opened or locked:
            self._before = await self._release_unknown(engine, None)
            self._reopened.set()
        self._opened = True

    async def _release_unknown(self, engine: Engine, before: datetime | None) -> datetime:
        before, released = await engine.release_unknown(self.worker.name, self.known(), before)
        if released:
            log.warning("claims whose answer was lost are released", count=released)
        return before

    async def release_late(self) -> None:
        """Release claims that committed after their connection was replaced, or were locked, until cancelled."""
        while True:
            await self._reopened.wait()
            self._reopened.clear()
            for pause in (*LATE, *LOCKED) if self._left_locked else LATE:
                await asyncio.sleep(pause)
                with suppress(DatabaseUnavailable, DatabaseRefused):
                    await self._release_unknown(self.engine, self._before)

    def opened(self) -> bool:
        """Return whether this process has ever had a session."""
        return self._opened

    def lost(self) -> None:
        self._unsettled.set()

    async def keep(self) -> None:
        """Open a lost session again, also while no slot is free to claim, or while the worker drains."""
        while True:
            await self._unsettled.wait()
            with excused(log, "session not opened"):
                async with self.listener.connection() as connection:
                    await self.open(connection)  # on a connection that has a session it is only recorded
            await asyncio.sleep(jittered(RETRY))


@dataclass(eq=False)
class SessionWatcher:
    """Takes workers for dead whose sessions are lost for longer than a grace, and ends their claims.

    It counts only the time during which it has looked without interruption. So an outage of the database, or of this
    worker, is not held against the others: they have longer then. A server that ran on has seen a session end.
    """

    engine: Engine
    name: str
    grace: timedelta
    """How long a lost worker has to open another session."""
    wake: Callable[[], None]
    """Called after a rescue, to claim the events: the dead worker may have been the responder."""
    clock: Callable[[], float] = lambda: time.monotonic()  # noqa: PLW0108 - tests replace the clock later
    """Returns seconds."""
    watches: Callable[[], bool] = lambda: True
    """Returns whether this worker is one of the few that look."""
    news: Callable[[float], Awaitable[object]] = asyncio.sleep
    """Waits so many seconds, or until another worker started, or until ``watches`` may have changed."""

    def __post_init__(self) -> None:
        self._grace = self.grace.total_seconds()
        self._pause = min(LOOK, 1.5 * self._grace)
        self._lost: dict[Lost, float] = {}
        """Since when each session is known to be lost."""
        self._dying: dict[Lost, timedelta] = {}
        """Workers that are taken for dead, some of whose claims were locked, with how long they had been lost."""
        self._due: float | None = None
        """When the next look is due, unless the last one failed or this worker did not watch."""
        self._disturbed_until = float("-inf")
        self._server_since: datetime | None = None

    async def run(self) -> None:
        while True:
            if self.watches():
                pause = await self.look()
            else:
                self._due, pause = None, ALONE
            await self.news(jittered(timedelta(seconds=pause), JITTER))

    async def look(self) -> float:
        """Look once, and end the claims of workers that are taken for dead. Return the seconds until the next look."""
        with excused(log, "sessions cannot be watched"):
            pause = await self._see()
            await self._rescue_all()
            return self._pause if self._dying else pause
        self._due = None
        self.disturbed()
        return self._pause

    def disturbed(self) -> None:
        """Note an outage: of the database, of this worker, of most workers, or of this worker's own session."""
        self._disturbed_until = self.clock() + max(OUTAGE, self._grace)

    async def _see(self) -> float:
        began = self.clock()
        sessions = await self.engine.watch_sessions(self.name)
        late = self._due is not None and began - self._due >= 2 * self._grace
        # A worker that lost its position did not look while the server began anew.
        anew = self._server_since not in (None, sessions.server_since)
        if self._due is None or late or anew:
            self._lost.clear()  # they could not have been replaced all the time since the last look
        if late or anew:
            self.disturbed()
        self._server_since = sessions.server_since
        now = self.clock()
        self._lost = {session: self._lost.get(session, now) for session in sessions.lost}
        if len(self._lost) > max(1, sessions.known / 2):
            self.disturbed()
        grace = max(OUTAGE if began < self._disturbed_until else 0.0, self._grace)
        for session, since in self._lost.items():
            if began - since >= grace:
                self._dying[session] = timedelta(seconds=began - since)
        waiting = [since + grace - now for session, since in self._lost.items() if session not in self._dying]
        # Alone, there is none to watch, until news of another one comes.
        pause = ALONE if sessions.known <= 1 else max(0.0, min([self._pause, *waiting]))
        self._due = now + pause
        return pause

    async def _rescue_all(self) -> None:
        for (worker, key), lost_for in list(self._dying.items()):
            try:
                rescued, remaining = await self.engine.rescue_worker(
                    worker, key, lost_for=lost_for, by=self.name
                )
            except DatabaseRefused as error:  # its row may refuse that: it keeps no other from its rescue
                log.error("a worker cannot be rescued", worker=worker, **described(error))  # noqa: TRY400 - its traceback says no more
                continue
            if rescued:
                self.wake()
            if rescued or not remaining:
                log.warning(
                    "worker died", worker=worker, lost_for=round(lost_for.total_seconds(), 1), rescued=rescued
                )
            if not remaining:
                del self._dying[worker, key]


@dataclass(eq=False)
class Announcer:
    """Keeps a worker on the list of live workers, and takes it off at its end.

    Polls bring its heartbeats. It announces the worker again if they did not, or if it was taken off the list.
    """

    worker: Introduction
    listener: Listener
    """Its connection announces."""
    engine: Engine
    """Takes the worker off the list."""
    opened: Callable[[], bool] = lambda: True
    """Returns whether this process has ever had a session. Without one the name may be another process's."""

    def __post_init__(self) -> None:
        self._last = float("-inf")
        self._missing = asyncio.Event()
        self._announced = False
        self._compared = asyncio.Event()
        self.clock_offset: timedelta | None = None
        """This process's clock less the database's, as last compared."""

    def due(self) -> str | None:
        """Return the worker's name if it is time for a heartbeat."""
        return self.worker.name if asyncio.get_running_loop().time() - self._last >= HEARTBEAT_PAUSE else None

    def sent(self, *, announced: bool) -> None:
        """Note that the database took a heartbeat, and whether the worker was announced."""
        if announced:
            self._last = asyncio.get_running_loop().time()
        else:
            self._missing.set()

    def compared(self, clock_offset: timedelta) -> None:
        """Note how far this process's clock is ahead of the database's."""
        self.clock_offset = clock_offset
        self._compared.set()

    async def run(self) -> None:
        """Announce at once, whenever heartbeats are missing, and every five minutes, until cancelled."""
        while True:
            if await self._announce():
                await self._until_missing(jittered(AGAIN))
            else:
                await asyncio.sleep(jittered(RETRY))

    async def retire(self) -> None:
        """Take the worker off the list, unless claims stand under its name. Close the listener before: it lists it."""
        if not self.opened():
            return
        try:
            async with asyncio.timeout(FAREWELL):
                await self.engine.retire_worker(self.worker.name)
        except (DatabaseUnavailable, DatabaseRefused, TimeoutError) as error:
            log.info("could not retire; the worker counts as dead after 90 s", **described(error))

    async def _announce(self) -> bool:
        """Announce once. Return whether the database took it, or whether trying again at once is of no use."""
        try:
            await sleep_unless(self._compared, 1.0)  # until the clocks are compared
            async with self.listener.connection() as connection:
                await self.worker.announce(Engine(connection), self.clock_offset)
                if not self._announced:
                    await Engine(connection).free_groups()
                self._announced = True
        except (DatabaseUnavailable, TransientConflict):
            return False  # the claimer logs the outage
        except DatabaseRefused as error:
            log.error("announcement failed", **described(error))  # noqa: TRY400 - its traceback says no more
        self.sent(announced=True)
        return True

    async def _until_missing(self, within: float) -> None:
        """Wait ``within`` seconds, or until the worker is not announced, or its last heartbeat is too old."""
        self._missing.clear()
        clock = asyncio.get_running_loop().time
        end = clock() + within
        while (left := min(self._last + HEARTBEAT_LATE.total_seconds(), end) - clock()) > 0:
            if await sleep_unless(self._missing, left):
                return
