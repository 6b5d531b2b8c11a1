"""Run the real worker in the test's process, and kill it as a crash does: without a settle, its session cut."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any

from surelane.calls import Pool
from surelane.codec import Codec
from surelane_service.engine import Engine
from surelane_service.pool import close_pool, create_pool
from surelane_worker.assembly import STATEMENT_TIMEOUT, Assembly, Pools
from surelane_worker.duties import Scheduler, beside
from surelane_worker.handling.outcomes import Backoff
from surelane_worker.handling.registry import Handlers, registered_in
from surelane_worker.handling.threads import LOST
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.tracing import Observer
from surelane_worker.slack.client import slack_clients
from surelane_worker.worker_settings import WorkerSettings

SERVICE = "surelane-testing-worker"
"""The application name of its pool's sessions."""
CONNECTIONS = 1
"""Of all its pools together. A session that is new takes longer than a test's statements in turn."""
BETWEEN_LOOKS = timedelta(milliseconds=1)
"""The pause between two looks at the schedules. A worker in production takes a second."""
AT_ONCE = Backoff(timedelta(), timedelta())
"""The pauses between the tries of one step: a test waits for none."""


class LocalWorker:
    """A worker of this process. It runs from :meth:`start` until :meth:`kill`."""

    def __init__(
        self, settings: WorkerSettings, handlers: Handlers, engine: Callable[[Pool, Codec], Engine] = Engine
    ) -> None:
        """``engine`` makes the calls with which attempts store their steps."""
        self.settings = settings
        self._handlers = handlers
        self._engine = engine
        self._started: asyncio.Future[tuple[Assembly, Pool]] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it, and return as its parts run. Raises Exception: it cannot start."""
        self._task = asyncio.create_task(self._run())
        either: list[asyncio.Future[Any]] = [self._task, self._started]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._started.done():
            await self._task

    @property
    def is_busy(self) -> bool:
        return self._started.done() and bool(self._started.result()[0].leases.held)

    def look_at_schedules(self) -> None:
        """Let it fire the schedules that are due."""
        if self._started.done():
            self._started.result()[0].scheduler.due_in(0)

    async def kill(self) -> None:
        """Cut its connections, then stop everything it runs. It settles nothing.

        A handler that is a coroutine is cancelled. A thread cannot be: it runs to its end, and reaches nothing.
        """
        if self._task is None or not self._started.done():
            return
        worker, pool = self._started.result()
        pool.terminate()
        worker.cut()
        works = set(worker.leases.held.values())
        self._task.cancel()
        for work in works:
            work.stop(LOST)  # so what waits for the database ends, too
        tasks = [work.task for work in works if work.task is not None]
        await asyncio.wait([self._task, *tasks])
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        async with AsyncExitStack() as stack:
            url, bound = self.settings.database_url.get_secret_value(), STATEMENT_TIMEOUT
            pool = await create_pool(url, service=SERVICE, max_size=CONNECTIONS, statement_timeout=bound)
            stack.push_async_callback(close_pool, pool)
            pools = Pools(pool, pool, pool, pool, pool)
            slack = await stack.enter_async_context(slack_clients(self.settings, traced=False))
            metrics = Metrics()
            more: dict[str, Any] = {"step_retries": AT_ONCE, "engine": self._engine}
            worker = Assembly(self.settings, self._handlers, pools, slack, Observer(metrics, None), **more)
            # The poller tells the first scheduler when schedules are due. This one is told by the test's clock.
            schedules = registered_in(self._handlers).schedules()
            worker.scheduler = Scheduler(Engine(pool), schedules, metrics, retry=BETWEEN_LOOKS)
            async with beside(*worker.duties()):
                self._started.set_result((worker, pool))
                await worker.claim(asyncio.Event())
