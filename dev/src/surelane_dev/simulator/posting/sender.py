"""Deliver events as Slack does: three seconds to answer, three retries with their reasons, faults on demand."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta

from surelane_dev.simulator.faults import Faults
from surelane_dev.simulator.posting.delivery import Delivery, DeliveryAttempt, State
from surelane_dev.simulator.posting.post import Post
from surelane_dev.simulator.posting.sockets import AppConnections

KEPT = 2000
HELD_AT_MOST = timedelta(seconds=5)


@dataclass(eq=False)
class Sender:
    """Keep the deliveries and the tasks that make them. Call ``changed`` at each step."""

    post: Post
    sockets: AppConnections
    retry_delays: tuple[timedelta, ...]
    faults: Faults
    changed: Callable[[Delivery], None] = lambda _: None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _held: list[asyncio.Future[None]] = field(default_factory=list)
    deliveries: OrderedDict[str, Delivery] = field(default_factory=OrderedDict)
    """The latest 2,000 deliveries by id, oldest first."""

    def send(self, delivery: Delivery) -> None:
        """Start the delivery of an event. Faults may duplicate or delay it."""
        self._keep(delivery)
        fault = self.faults.take(Faults.DELIVERY)
        self._start(self._deliver(delivery, fault.kind if fault else None))

    def resend(self, delivery: Delivery) -> None:
        """Deliver once more, as Slack does when an acknowledgement is lost."""
        self._start(self._repeat(delivery))

    async def send_once(self, delivery: Delivery) -> DeliveryAttempt:
        """Deliver a slash command or an interaction. Slack tries it once, while the user waits."""
        self._keep(delivery)
        await self._attempt(delivery, 0, last=True)
        return delivery.attempts[-1]

    async def close(self) -> None:
        """Give up all unfinished deliveries; may be called again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.post.close()
        await self.sockets.close()

    def _keep(self, delivery: Delivery) -> None:
        self.deliveries[delivery.id] = delivery
        while len(self.deliveries) > KEPT:
            self.deliveries.popitem(last=False)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, delivery: Delivery, fault: str | None) -> None:
        try:
            if fault == "out_of_order":
                await self._hold(delivery)
            await self._try(delivery)
            if fault == "duplicate" and delivery.state == "delivered":
                await self._repeat(delivery)
        finally:
            delivery.answered.set()

    async def _try(self, delivery: Delivery) -> None:
        retries = len(self.retry_delays)
        for number in range(retries + 1):
            if number:
                await self._pause(delivery, self.retry_delays[number - 1])
            reason = delivery.attempts[-1].problem if number else None
            settled = await self._attempt(delivery, number, reason, last=number == retries)
            self._release_held()
            if settled:
                return

    async def _repeat(self, delivery: Delivery) -> None:
        await self._attempt(delivery, 1, "http_timeout", last=True)

    async def _attempt(
        self, delivery: Delivery, number: int, reason: str | None = None, *, last: bool
    ) -> bool:
        """Post once; return whether the delivery is finished."""
        self._move(delivery, "sending")
        send = self.sockets if self.sockets.used else self.post
        attempt = await send(delivery, number, reason)
        delivery.attempts.append(attempt)
        settled = attempt.problem is None or attempt.no_retry or last
        self._move(delivery, "delivered" if attempt.problem is None else "failed" if settled else "retrying")
        delivery.answered.set()
        return settled

    async def _pause(self, delivery: Delivery, delay: timedelta) -> None:
        delivery.next_at = time.time() + delay.total_seconds()
        self.changed(delivery)
        await asyncio.sleep(delay.total_seconds())
        delivery.next_at = None

    async def _hold(self, delivery: Delivery) -> None:
        overtaken = asyncio.get_running_loop().create_future()
        self._held.append(overtaken)
        self._move(delivery, "held")
        await asyncio.wait([overtaken], timeout=HELD_AT_MOST.total_seconds())
        if overtaken in self._held:
            self._held.remove(overtaken)

    def _release_held(self) -> None:
        held, self._held = self._held, []
        for overtaken in held:
            overtaken.set_result(None)

    def _move(self, delivery: Delivery, state: State) -> None:
        delivery.state = state
        self.changed(delivery)
