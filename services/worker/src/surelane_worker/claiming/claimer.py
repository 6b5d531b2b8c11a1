"""The claimer: claims events while slots are free, and sleeps while there is nothing to claim."""

import asyncio
import time
from contextlib import suppress

from surelane.encryption.sealing import Sealing
from surelane.errors import DatabaseRefused, DatabaseUnavailable
from surelane.events import Event
from surelane_service.engine import Engine
from surelane_service.listener import Listener
from surelane_service.logs import get_logger
from surelane_worker.claiming.cursors import Cursors
from surelane_worker.claiming.position import Position, Side
from surelane_worker.claiming.second import SecondClaims
from surelane_worker.claiming.sharer import Sharer
from surelane_worker.observing.readiness import Outage
from surelane_worker.observing.tracing import Observer
from surelane_worker.settings import WorkerSettings

FIRST_PAUSE = 0.1
"""Seconds after the first failed claim. The pause doubles each time, up to the poll interval."""
OPEN_WITHIN = 2.0
"""Seconds in which claimed events are decrypted, if their data keys are to be looked up first."""

log = get_logger("surelane_worker.claiming.claimer")


class Claimer:
    """Claim events for free slots until the worker stops."""

    def __init__(
        self,
        settings: WorkerSettings,
        listener: Listener,
        side: Side,
        second: SecondClaims | None,
        *,
        cursors: Cursors,
        position: Position,
        sharer: Sharer,
        observer: Observer,
        outage: Outage,
        sealing: Sealing,
    ) -> None:
        """Claim over ``listener`` for the slots of ``side``. While the queue is full, ``second`` claims beside it.

        A worker's claimers share all other parts.
        """
        self._settings = settings
        self._listener = listener
        self._cursors = cursors
        self._side = side
        self._second = second
        self._wakeup = side.wakeup
        self._position = position
        self._sharer = sharer
        self._slots = side.slots
        self._metrics = observer.metrics
        self._tracing = observer.tracing
        self._outage = outage
        self._sealing = sealing
        self._failures = 0
        self._claiming_since: float | None = None
        self._slept: float | None = None
        """Duration of the idle sleep that just ended, in seconds; ``None`` if notifications are off."""
        self._stopping = False

    async def run(self, stop: asyncio.Event) -> None:
        """Claim until ``stop`` is set. Events of claims that are under way then are released."""
        stopping = asyncio.create_task(self._stop_at(stop))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._run())
                if self._second is not None:
                    group.create_task(self._run_beside(self._second))
        finally:
            stopping.cancel()

    async def _run(self) -> None:
        while not self._stopping:
            try:
                await self._turn()
            except Exception:
                log.exception("claim crashed; the worker tries again after a pause")
                await self._pause()

    async def _run_beside(self, second: SecondClaims) -> None:
        """Claim over the second connection while the queue is full, until the worker stops."""
        while await second.wanted():
            free = second.worth(self._slots.free())
            if not free:
                await self._slots.freed()
                continue
            kinds, limit = [kind for kinds, _ in free for kind in kinds], min(count for _, count in free)
            try:
                second.found(len(await self._claim_over(second.connection, kinds, limit)), limit)
                if second.is_open:
                    self._wakeup.wake()  # the first one may have found nothing but what this one had locked
            except Exception as error:  # noqa: BLE001 - the first connection goes on, and meets it as well if it stays
                second.failed(error)
                self._wakeup.wake()  # the first one may have left out what this one was to claim

    async def _stop_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stopping = True
        if self._second is not None:
            self._second.stop()
        self._slots.close()
        self._wakeup.wake()

    def claiming_for(self) -> float:
        """Return for how many seconds claims have succeeded without interruption."""
        return (
            0.0 if self._claiming_since is None else asyncio.get_running_loop().time() - self._claiming_since
        )

    def is_claiming(self) -> bool:
        """Return whether the latest claim succeeded."""
        return self._claiming_since is not None

    async def _turn(self) -> None:
        while not self._stopping and not self._slots.free():
            await self._slots.freed()
        if not await self._claim_all() and not self._stopping:
            await self._sleep()

    async def _claim_all(self) -> bool:
        """Claim for all free slots in one statement, then once for each share of them if that found events.

        Returns whether to claim again without a sleep.
        """
        self._wakeup.answered()
        free = self._slots.free()
        self._slots.left_out(free)
        if not free:
            return True
        found = await self._claim(
            [kind for kinds, _ in free for kind in kinds], min(count for _, count in free)
        )
        if found and len(free) > 1:
            for kinds, count in self._slots.free():
                await self._claim(kinds, count)
        return found

    async def _claim(self, kinds: list[str], limit: int) -> bool:
        """Claim once over the first connection. Return whether there were any events."""
        if self._stopping:
            return False
        found = 0
        began = asyncio.get_running_loop().time()
        slept, self._slept = self._slept, None
        try:
            events = await self._claim_over(self._listener, kinds, limit, slept)
            self._succeeded(began)
            found = len(events)
        except (DatabaseUnavailable, DatabaseRefused) as error:
            if isinstance(error, DatabaseUnavailable):
                self._outage.goes_on(error)
            else:
                log.error("claim failed; the worker tries again", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
            await self._pause()
        finally:
            if self._second is not None:
                self._second.found(found, limit)
        return found > 0

    async def _claim_over(
        self, listener: Listener, kinds: list[str], limit: int, slept: float | None = None
    ) -> list[Event]:
        """Claim once over a connection, hand the events to the slots, and return them."""
        loop = asyncio.get_running_loop()
        began, began_at = loop.time(), time.time_ns()
        halves = self._second is not None and self._second.is_open
        with self._slots.expecting(kinds, limit, halves=halves) as most_bytes:
            events = await self._claim_events(listener, kinds, limit, most_bytes)
        self._metrics.operation.add("receive", loop.time() - began)
        if events:
            self._wakeup.found_some()
            if slept is not None:
                self._metrics.woken(events, self._settings.lease, slept)
            self._metrics.claimed(events)
            if self._tracing is not None:
                self._tracing.received(events, began_at)
            self._sharer.claimed(events)
            self._slots.accept(events, began)
            self._position.claimed(self._side, events, limit)
        return events

    async def _claim_events(
        self, listener: Listener, kinds: list[str], limit: int, most_bytes: int
    ) -> list[Event]:
        async with listener.bounded() as connection:
            corrections = self._cursors.corrections
            events = await Engine(connection).claim_events(
                kinds,
                limit,
                worker=self._settings.name,
                max_attempts=self._settings.max_attempts,
                invisible_for=self._settings.lease,
                cursors=self._cursors.starts(kinds),
                member_kinds=self._slots.kinds,
                most_bytes=most_bytes,
            )
        self._cursors.advance(events, corrections)
        with (
            self._slots.opening(events),
            suppress(TimeoutError),
        ):  # before their handlers run, they are tried again
            async with asyncio.timeout(OPEN_WITHIN):
                await self._sealing.open_events(events)
        return events

    def _succeeded(self, began: float) -> None:
        self._outage.is_over()
        self._failures = 0
        if self._claiming_since is None:
            self._claiming_since = began

    async def _pause(self) -> None:
        """Wait after a failure, each time twice as long, before the connection is opened again."""
        self._claiming_since = None
        self._failures += 1
        longest = self._settings.poll_interval.total_seconds()
        if self._stopping:
            return
        self._wakeup.answered()
        await self._wakeup.sleep(min(FIRST_PAUSE * 2 ** min(self._failures, 10), longest))

    async def _sleep(self) -> None:
        """Sleep until there may be something to claim. After a failure there was a pause already."""
        if self._failures:
            return
        began = asyncio.get_running_loop().time()
        await self._wakeup.sleep()
        if self._settings.notifications:
            self._slept = asyncio.get_running_loop().time() - began
