"""What a handler gets besides its event: Slack, the queue, settings, and a logger bound to the event."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from surelane.events import Event
from surelane.queue import Queue
from surelane_service.engine import Engine
from surelane_service.logs import Logger
from surelane_worker.settings import WorkerSettings
from surelane_worker.slack.client import SlackClients
from surelane_worker.slack.replies import Replies

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Services:
    """What all handlers of a worker share."""

    queue: Queue
    engine: Engine
    hold: "Hold"
    settings: WorkerSettings
    slack: SlackClients
    log: Logger
    loop: asyncio.AbstractEventLoop


class Stoppable(Protocol):
    """Something whose claim may be lost or taken back while its handler runs."""

    @property
    def stopped(self) -> str | None: ...


Hold = Callable[[Stoppable], Awaitable[None]]
"""Returns while a claim stands, and cancels its handler else."""


class Context:
    """One attempt's surroundings. Everything is made on first use: most handlers need little of it."""

    __slots__ = ("_events", "_log", "_services", "_slack", "_work")

    def __init__(self, services: Services, events: Sequence[Event], work: Stoppable) -> None:
        self._services = services
        self._events = events
        self._work = work
        self._slack: Replies | None = None
        self._log: Logger | None = None

    @property
    def slack(self) -> Replies:
        """Replies that are sent once however often the event is tried; ``slack.client`` is the plain Web API client."""
        if self._slack is None:
            hold = partial(self._services.hold, self._work)
            self._slack = Replies(self._services.slack, self._services.engine, self.log, hold)
        return self._slack

    @property
    def queue(self) -> Queue:
        """The queue: enqueue further jobs, cancel and reschedule them, read the children of a workflow."""
        return self._services.queue

    @property
    def settings(self) -> WorkerSettings:
        """The worker's settings."""
        return self._services.settings

    @property
    def log(self) -> Logger:
        """A logger whose lines carry the event's id, kind and attempt."""
        if self._log is None:
            first = self._events[0]
            self._log = self._services.log.bind(event_id=first.key, kind=first.kind, attempt=first.attempts)
        return self._log

    @property
    def attempt(self) -> int:
        """Which attempt this is; 1 is the first."""
        return self._events[0].attempts

    @property
    def cancelled(self) -> bool:
        """Whether the lease is lost or the worker ends: for synchronous handlers, which nobody can cancel, to ask."""
        return self._work.stopped is not None

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """For synchronous handlers: runs a coroutine, such as ``ctx.slack.reply(…)``, and waits for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._services.loop).result()
