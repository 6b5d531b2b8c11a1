"""The worker's loop: claim, dispatch, sleep; and at the end, drain."""

import asyncio
import time
from collections.abc import Mapping, Sequence

from surelane.events import Event
from surelane_service.engine import Engine
from surelane_service.listener import Listener
from surelane_service.logs import get_logger
from surelane_service.pool import RETRYABLE, UNAVAILABLE, DatabaseError
from surelane_worker.claiming.cursors import Cursors
from surelane_worker.claiming.wakeup import Room, Wakeup
from surelane_worker.handling.handler import Handler
from surelane_worker.leasing.leases import Leases
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.outage import Outage
from surelane_worker.observing.tracing import Tracing
from surelane_worker.running.runner import Executor
from surelane_worker.running.slots import PATIENCE, Dispatch
from surelane_worker.running.work import Work, works_of
from surelane_worker.settings import WorkerSettings
from surelane_worker.settling.settler import Settler

MOST_UNSETTLED = 3000
"""Events held at once, waiting, running and being settled, beyond which nothing is claimed."""
FLUSH = 10.0
"""Seconds a drain waits for the database to take the last settles."""
FIRST_PAUSE = 0.1

log = get_logger("surelane_worker.claiming.claimer")


class Loop:
    """Claims events and has them run, as long as it may."""

    def __init__(
        self,
        settings: WorkerSettings,
        handlers: Mapping[str, Handler],
        listener: Listener,
        cursors: Cursors,
        wakeup: Wakeup,
        room: Room,
        dispatch: Dispatch,
        executor: Executor,
        settler: Settler,
        leases: Leases,
        metrics: Metrics,
        tracing: Tracing | None,
    ) -> None:
        self._settings = settings
        self._handlers = handlers
        self._kinds = list(handlers)
        self._listener = listener
        self._wakeup = wakeup
        self._dispatch = dispatch
        self._executor = executor
        self._settler = settler
        self._leases = leases
        self._metrics = metrics
        self._tracing = tracing
        self._cursors = cursors
        self._outage = Outage(log, "claims")
        self._failures = 0
        self._claiming_since: float | None = None
        self._slept: float | None = None
        """For how many seconds, where it has just ended and notifications are to end it."""
        self._room = room
        self.stopping = False

    async def run(self, stop: asyncio.Event) -> None:
        """Works until ``stop`` is set, then drains."""
        heeding = asyncio.create_task(self._heed(stop))
        try:
            while not self.stopping:
                try:
                    await self._turn()
                except Exception:
                    log.exception("claims crashed")
                    await self._wait_longer()
        finally:
            heeding.cancel()
        await self._drain()

    async def _turn(self) -> None:
        await self._until_room()
        if not await self._claim_all() and not self.stopping:
            await self._sleep()

    async def _heed(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.stopping = True
        self._room.free()
        self._wakeup.wake()

    @property
    def claiming_for(self) -> float:
        """For how many seconds claims have been succeeding without interruption."""
        return (
            0.0 if self._claiming_since is None else asyncio.get_running_loop().time() - self._claiming_since
        )

    async def _until_room(self) -> None:
        """Waits while every slot is taken, giving back what has waited for one for too long."""
        while not self.stopping and not self._open_lines():
            if not await self._room.freed(within=PATIENCE):
                self._give_back(self._dispatch.take_waiting(asyncio.get_running_loop().time() - PATIENCE))

    def _open_lines(self) -> list[tuple[list[str], int]]:
        """What may be claimed now: kinds that share a bound, and how many events of them."""
        if self._leases.bytes >= self._settings.claim_bytes:
            return []
        left = MOST_UNSETTLED - len(self._leases.held)
        rooms = ((line.kinds, min(self._dispatch.room(line), left)) for line in self._dispatch.lines)
        return [(kinds, room) for kinds, room in rooms if room > 0]

    async def _claim_all(self) -> bool:
        """Claims for every open line in one statement; where that brings something, for each line on its own."""
        self._wakeup.answered()
        lines = self._open_lines()
        self._room.left_out = len(lines) < len(self._dispatch.lines)
        if not lines:
            return True
        found = await self._claim(
            [kind for kinds, _ in lines for kind in kinds], min(room for _, room in lines)
        )
        if found and len(lines) > 1:
            for kinds, room in self._open_lines():
                await self._claim(kinds, room)
        return found

    async def _claim(self, kinds: list[str], limit: int) -> bool:
        """Claims once and hands over what it brought; returns whether it brought something."""
        if self.stopping:
            return False
        loop = asyncio.get_running_loop()
        began, began_at = loop.time(), time.time_ns()
        slept, self._slept = self._slept, None
        try:
            events = await self._claim_events(kinds, limit)
        except (*UNAVAILABLE, *RETRYABLE, DatabaseError) as error:
            await self._recover(error)
            return False
        self._succeeded(began)
        self._metrics.operation.add("receive", loop.time() - began)
        if not events:
            return False
        self._wakeup.found_some()
        if slept is not None:
            self._metrics.woken(events, self._settings.lease, slept)
        self._accept(events, began, began_at)
        return True

    async def _claim_events(self, kinds: list[str], limit: int) -> list[Event]:
        async with self._listener.bounded() as connection:
            corrections = self._cursors.corrections
            events = await Engine(connection).claim_events(
                kinds,
                limit,
                worker=self._settings.name,
                max_attempts=self._settings.max_attempts,
                invisible_for=self._settings.lease,
                cursors=self._cursors.starts(kinds),
                member_kinds=self._kinds,
                most_bytes=self._settings.claim_bytes - self._leases.bytes,
            )
        self._cursors.advance(events, corrections)
        return events

    def _accept(self, events: Sequence[Event], began: float, began_at: int) -> None:
        self._metrics.claimed(events)
        if self._tracing is not None:
            self._tracing.received(events, began_at)
        lease_ends, now = self._leases.ends(began), asyncio.get_running_loop().time()
        works = works_of(events, self._handlers, lease_ends, now)
        for work in works:
            self._leases.add(work)
        if self.stopping or lease_ends < now:  # the answer may have taken longer than the lease
            self._give_back(works)
        else:
            self._dispatch.add(works)

    def _succeeded(self, began: float) -> None:
        self._outage.is_over()
        self._failures = 0
        if self._claiming_since is None:
            self._claiming_since = began

    async def _recover(self, error: BaseException) -> None:
        """Waits, the longer the more often it was needed, before the connection is opened again."""
        if isinstance(error, UNAVAILABLE):
            self._outage.goes_on(error)
        else:
            log.error("claim failed", error=type(error).__name__)
        await self._wait_longer()

    async def _wait_longer(self) -> None:
        self._claiming_since = None
        self._failures += 1
        longest = self._settings.poll_interval.total_seconds()
        if self.stopping:
            return
        self._wakeup.answered()
        await self._wakeup.sleep(min(FIRST_PAUSE * 2 ** min(self._failures, 10), longest))

    async def _sleep(self) -> None:
        """Sleeps until there may be something to claim; after a failure there was a pause already."""
        if self._failures:
            return
        began = asyncio.get_running_loop().time()
        await self._wakeup.sleep()
        if self._settings.notifications:
            self._slept = asyncio.get_running_loop().time() - began

    def _give_back(self, works: Sequence[Work]) -> None:
        for work in works:
            self._executor.give_back(work)

    async def _drain(self) -> None:
        """Gives back what has not started, lets running handlers end, and waits until everything is settled."""
        log.info("draining", held=len(self._leases.held))
        self._give_back(self._dispatch.take_waiting())
        await self._dispatch.drain(self._settings.drain_timeout.total_seconds())
        try:
            async with asyncio.timeout(FLUSH):
                await self._settler.flushed()
        except TimeoutError:
            log.warning(
                "stopped with unsettled events; their leases will run out", count=len(self._leases.held)
            )
