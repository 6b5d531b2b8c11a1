"""Give a handler Slack, the queue, the settings, and a logger bound to its event."""

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
    """The objects that all handlers of a worker share."""

    queue: Queue
    engine: Engine
    check_claim: "ClaimCheck"
    settings: WorkerSettings
    slack: SlackClients
    log: Logger
    loop: asyncio.AbstractEventLoop


class Stoppable(Protocol):
    """Work that may lose its claim while its handler runs."""

    @property
    def stopped(self) -> str | None:
        """Why it was stopped, or ``None``."""


ClaimCheck = Callable[[Stoppable], Awaitable[None]]
"""Returns while a claim stands; otherwise cancels its handler."""


class Context:
    """The surroundings of one attempt. Each part is made on first use, because most handlers need few of them."""

    __slots__ = ("_events", "_log", "_services", "_slack", "_work")

    def __init__(self, services: Services, events: Sequence[Event], work: Stoppable) -> None:
        self._services = services
        self._events = events
        self._work = work
        self._slack: Replies | None = None
        self._log: Logger | None = None

    @property
    def slack(self) -> Replies:
        """Replies that are sent once even if the attempt is repeated; ``slack.client`` is the plain Web API client."""
        if self._slack is None:
            check_claim = partial(self._services.check_claim, self._work)
            self._slack = Replies(self._services.slack, self._services.engine, self.log, check_claim)
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
        """The number of this attempt; 1 is the first."""
        return self._events[0].attempts

    @property
    def cancelled(self) -> bool:
        """Whether the lease is lost or the worker stops.

        A thread cannot be cancelled, so synchronous handlers should ask.
        """
        return self._work.stopped is not None

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine, such as ``ctx.slack.reply(…)``, from a synchronous handler and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._services.loop).result()
