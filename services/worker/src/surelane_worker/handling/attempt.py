"""One attempt: what the runner and our own handlers use while a handler runs, and what all handlers share."""

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, cast

from surelane.codec import Codec, SealedError
from surelane.drivers import Row
from surelane.errors import SurelaneError, described
from surelane.events import Event
from surelane.queue import Queue
from surelane_service.engine import Engine
from surelane_service.lifecycle import RUN, apart, sleep_unless
from surelane_service.logs import Logger
from surelane_worker.handling.answers import SUBMISSION, AnswerSender
from surelane_worker.handling.asks import Asks
from surelane_worker.handling.fence import Fence
from surelane_worker.handling.flow import AttemptTasks, Suspended
from surelane_worker.handling.outcomes import Backoff
from surelane_worker.handling.past import reply_key
from surelane_worker.handling.records import plain
from surelane_worker.handling.routes import FIRST
from surelane_worker.handling.steps import StepError, Steps, inside_step
from surelane_worker.handling.threads import Threads, outlast
from surelane_worker.slack.client import OF_TOKEN, SlackClients, slack_error
from surelane_worker.slack.marks import Ordinal
from surelane_worker.slack.notes import ClaimLostError, Notebooks
from surelane_worker.slack.replies import Replies
from surelane_worker.slack.tokens import BotTokens, Refresher, owner_of
from surelane_worker.worker_settings import WorkerSettings

LONGEST_PROGRESS = 200
"""Characters of a progress, which is cut, and of a tag's value."""
BETWEEN = 1.0
"""Seconds between two writes of a progress, unless the attempt ends."""
_TAG = re.compile(r"[\w.-]{1,40}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that all handlers of a worker share."""

    queue: Queue
    engine: Engine
    check_claim: Callable[["Stoppable"], Awaitable[None]]
    """Returns while a claim stands; otherwise cancels its handler."""
    settings: WorkerSettings
    slack: SlackClients
    answers: AnswerSender
    log: Logger
    loop: asyncio.AbstractEventLoop
    step_retries: Backoff
    tokens: BotTokens | None
    """Those of installs; ``None``: there is one token for all events."""
    installs: Refresher | None
    codec: Codec


class Stoppable(Protocol):
    """Work that may lose its claim while its handler runs."""

    @property
    def stopped(self) -> str | None:
        """Why it was stopped, or ``None``."""


class OrderedQueue(Queue):
    """The queue of an attempt. What the handler saw end is stored before each call."""

    def __init__(self, queue: Queue, before: Callable[[], Awaitable[None]]) -> None:
        vars(self).update(vars(queue))
        self._calls, self._before = self._database, before
        self._database = cast("Any", self)

    async def fetch(self, query: str, *arguments: object) -> Sequence[Row]:
        await self._before()
        return await self._calls.fetch(query, *arguments)


class Progress:
    """The latest text about one event. Background tasks write it, so that the handler does not wait."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._text = self._written = ""
        self._ending = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    def say(self, text: str) -> None:
        text = plain(str(text))
        self._text = text if len(text) <= LONGEST_PROGRESS else f"{text[: LONGEST_PROGRESS - 1]}…"
        if self._writing is None or self._writing.done():
            self._writing = apart(self._write())

    async def end(self) -> None:
        """Write the last text, if it is not written yet. A stop of the handler ends the wait for it."""
        self._ending.set()
        if self._writing is not None:
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._writing])

    async def _write(self) -> None:
        while self._written != self._text:
            self._written = self._text  # also if this fails: nothing tries again
            try:
                await self._fence.send(self._fence.engine.store_progress, self._written)
            except (ClaimLostError, SurelaneError, SealedError) as error:
                self._fence.log.warning("the progress was not stored", **described(error))
            await sleep_unless(self._ending, BETWEEN)


class Attempt:
    """An attempt, for the runner and our own handlers. A team's handlers get its :class:`Context`.

    Each part is made on first use. No part refers to the context: the cycle would keep its events in memory.
    """

    answered = False
    """Whether Slack's request or the person has an answer."""
    main: asyncio.Task[Any] | None = None
    """The task that runs the handler; ``None`` if a thread runs it."""
    version = FIRST
    """The version of the handler that the run began under."""
    progressing = False
    """Whether the handler said how far it is."""
    root: asyncio.Task[Any] | None = None
    """The task in which the worker calls the handler."""
    _thread: int | None = None
    _clients: SlackClients | None = None

    def __init__(
        self,
        services: Services,
        events: Sequence[Event],
        work: Stoppable,
        *,
        grouped: bool = False,
        coalesced: bool = False,
    ) -> None:
        """``grouped`` events have an outcome each, so no steps. All of ``coalesced`` ones is kept with the first."""
        self.services = services
        self.events = events
        self.work = work
        self.began = services.loop.time()
        self.mark = object()
        """Stands for this attempt in the contexts of its tasks."""
        self._grouped = grouped
        self._coalesced = coalesced

    async def prepare(self, events: Sequence[Event]) -> None:
        """Decrypt the events, and take the token of the first one's workspace, if that has installed the app."""
        tokens, first = self.services.tokens, self.events[0]
        if (opening := self.services.codec.enter(events)) is not None:
            await opening
        if tokens is not None:
            self._clients = tokens.kept(first.payload, self.began) or await tokens.clients_for(first)

    async def has_old_token(self, error: BaseException) -> bool:
        """Return whether Slack refused a token that an install or a refresh has replaced meanwhile."""
        refused = error.__cause__ if isinstance(error, StepError) else error
        tokens, owner, clients = self.services.tokens, owner_of(self.events[0]), self._clients
        if slack_error(refused) not in OF_TOKEN or tokens is None or owner is None or clients is None:
            return False
        with suppress(SurelaneError):
            return await tokens.is_replaced(owner, clients)
        return False

    async def check_claim(self) -> None:
        """Return while the claim stands and the handler is not suspended; otherwise cancel it."""
        self.check()
        await self.finalize()
        await self.services.check_claim(self.work)

    async def finalize(self) -> None:
        """Store what the handler saw end, before it does something that others see."""
        if self.waited and not inside_step():
            await self.steps.finalize()

    @cached_property
    def queue(self) -> Queue:
        return OrderedQueue(self.services.queue, self.finalize)

    def begin(self, task: asyncio.Task[Any] | None) -> None:
        """Note the task in which the handler is called."""
        self.main = self.root = task
        RUN.set(self.mark)

    def check(self) -> None:
        """Raise :class:`Suspended` if the handler is suspended."""
        if self.waited and self.steps.flow.suspend is not None:
            raise Suspended

    async def finish(self) -> None:
        """Stop the steps and waits that the handler has left running, and wait until they have ended.

        A thread cannot be stopped. It is waited for until its claim is lost.
        """
        RUN.set(None)
        self.main = None
        if not self.waited:
            return
        self.own.clear()
        self.steps.flow.close()
        if await outlast(self.steps.running, lambda: self.work.stopped):
            raise asyncio.CancelledError

    @cached_property
    def own(self) -> set[asyncio.Task[Any] | None]:
        """The handler's own task, or that of a call in its own thread. The handler may begin others."""
        return {self.main}

    def in_thread(self, function: Callable[..., object], *given: object) -> object:
        """Call a synchronous handler in the current thread."""
        self._thread = threading.get_ident()
        return function(*given)

    def stop_calls(self) -> None:
        """Cancel what the handler's thread waits for, if the handler is to stop."""
        if self.work.stopped is not None:
            for task in self.own:
                if task is not None:
                    task.cancel()

    async def called(self, what: Awaitable[Any], thread: int) -> Any:
        """Return the result of what a thread of a synchronous handler waits for."""
        task = asyncio.current_task()
        if thread == self._thread:
            self.own.add(task)
        try:
            return await what
        finally:
            self.own.discard(task)

    @property
    def clients(self) -> SlackClients:
        """The clients with the token of the event's workspace."""
        return self._clients or self.services.slack

    @cached_property
    def notebooks(self) -> Notebooks:
        return Notebooks(self.services.engine, self.log)

    @cached_property
    def replies(self) -> Replies:
        return self.replies_through(self.clients)

    def replies_through(self, clients: SlackClients, first: int = 0) -> Replies:
        """Return replies through these clients, which share the notes of all others and count from ``first`` on."""
        owner = self.events[0] if self._coalesced else None
        checks = self.check_claim, self.check_new, self.come_to
        by_text = not self.services.codec.on  # a digest would confirm a guess of an encrypted text
        return Replies(clients, self.notebooks, self.log, *checks, owner=owner, first=first, by_text=by_text)

    def come_to(self, ordinal: Ordinal) -> list[Any] | None:
        """Note that the handler has come to a reply. Return past which step, if a later run comes there alike.

        Replies of tasks that the handler begins, and of steps, have no place among the steps.
        """
        if not self.waited or inside_step() or asyncio.current_task() not in self.own:
            return None
        flow = self.steps.flow
        flow.come(reply_key(ordinal))
        return [] if flow.latest is None else [flow.latest.name, flow.latest.nth]

    @cached_property
    def log(self) -> Logger:
        first = self.events[0]
        return self.services.log.bind(event_id=first.key, kind=first.kind, attempt=first.attempts)

    @cached_property
    def threads(self) -> Threads:
        work = self.work
        return Threads(lambda: work.stopped)

    @property
    def stopped(self) -> bool:
        """Whether the work is stopped, or a synchronous function is overdue."""
        return self.work.stopped is not None or self.overdue()

    def overdue(self) -> bool:
        """Return whether a synchronous function goes on after its end was asked for."""
        return "threads" in vars(self) and self.threads.overdue > 0

    def fence(self, event: Event) -> Fence:
        """Return the fence of an event. Its claim is checked also once the handler is suspended."""
        services = self.services
        return Fence(services.engine, event, self.log, partial(services.check_claim, self.work))

    @cached_property
    def steps(self) -> Steps:
        event, version = self.events[0], self.version
        note = None if version == FIRST else partial(self.notebooks.of(event).note_version, version)
        return Steps(
            self.fence(event),
            self.threads,
            AttemptTasks(self.main, self.mark, self.root if self.main is None else None, self._thread_works),
            self.own,
            self._grouped,
            self.services.step_retries,
            note,
            self.undoing,
        )

    def _thread_works(self) -> bool:
        return self._thread is not None and not any(self.own)

    @property
    def undoing(self) -> bool:
        """Whether this attempt runs the handler's undos alone."""
        notes = self.events[0].notes
        return notes is not None and "undo" in json.loads(notes)

    async def check_new(self) -> None:
        """As :meth:`check_claim`, before a message that is new: a handler that undoes stops there."""
        if self.undoing:
            await self.steps.stop_replay()
        await self.check_claim()

    @property
    def waited(self) -> bool:
        """Whether the handler used steps or waits."""
        return "steps" in self.__dict__

    @cached_property
    def asks(self) -> Asks:
        return Asks(self.steps, self.replies)

    @cached_property
    def progress(self) -> Progress:
        self.progressing = True
        return Progress(self.fence(self.events[0]))

    @property
    def attempts(self) -> int:
        return 1 if self.waited and self.steps.progressed else max(event.attempts for event in self.events)

    def age(self) -> float:
        """Return the seconds since the event was stored, by the database's clock."""
        event = self.events[0]
        claimed_at = event.vt - self.services.settings.lease
        return (claimed_at - event.event_ts).total_seconds() + self.services.loop.time() - self.began

    def conclude(self, *, completed: bool) -> None:
        """Answer Slack's request with nothing, after a handler that was to answer and did not.

        A modal would close as if its input were accepted: it waits for another attempt unless the event ``completed``.
        """
        if not self.answered and (completed or self.events[0].kind != SUBMISSION):
            self.services.answers.acknowledge(self.events[0])


class TagError(ValueError):
    """A tag cannot be set; none of the call's tags was."""


async def set_tags(fences: Iterable[Fence], tags: Mapping[str, object]) -> None:
    """Set tags of events; see :meth:`Context.tag`."""
    for name in tags:
        if not _TAG.fullmatch(name):
            raise TagError(f"the name of a tag has 1 to 40 letters, digits, _, . and -: {name!r:.80}")
    checked = {name: _tag_value(name, value) for name, value in tags.items()}
    for fence in fences:
        await fence.send(fence.engine.store_tags, checked)


def _tag_value(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | int | float):
        raise TagError(f"tag {name} is a {type(value).__name__}: give it a text or a number")
    text = value if isinstance(value, str) else json.dumps(value)
    if not 0 < len(text) <= LONGEST_PROGRESS or not text.isprintable():
        raise TagError(f"the value of tag {name} has 1 to {LONGEST_PROGRESS} printable characters")
    return text
