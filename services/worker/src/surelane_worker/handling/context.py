"""The context of an attempt: what a handler may use, as ``ctx``."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from surelane.encryption.sealing import Sealing
from surelane.events import Event
from surelane.queue import Queue
from surelane_service.engine import Engine
from surelane_service.logs import Logger
from surelane_worker.handling.answers import (
    SUBMISSION,
    Answers,
    Body,
    ResponseAction,
    ResponseType,
    answer_text,
)
from surelane_worker.handling.asks import Answer, Asks, People
from surelane_worker.handling.outcomes import Backoff, Pause, Suspend
from surelane_worker.handling.steps import StepError, Steps
from surelane_worker.handling.threads import Threads
from surelane_worker.handling.waits import Waits
from surelane_worker.settings import WorkerSettings
from surelane_worker.slack.client import SlackClients
from surelane_worker.slack.modals import answer_modal
from surelane_worker.slack.refresh import Refresher
from surelane_worker.slack.replies import Replies
from surelane_worker.slack.tokens import Tokens

Result = TypeVar("Result")

TRIGGER_LIVES = 3.0
"""Seconds for which Slack takes a ``trigger_id``, and waits for an answer."""
MARGIN = 0.5
"""Seconds that ingest's answer may take to a person's modal."""


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that all handlers of a worker share."""

    queue: Queue
    engine: Engine
    check_claim: "ClaimCheck"
    settings: WorkerSettings
    slack: SlackClients
    answers: Answers
    log: Logger
    loop: asyncio.AbstractEventLoop
    step_retries: Backoff
    """The pauses between the tries of one step."""
    tokens: Tokens | None = None
    """Those of installs; ``None``: there is one token for all events."""
    installs: Refresher | None = None
    sealing: Sealing | None = None


class Stoppable(Protocol):
    """Work that may lose its claim while its handler runs."""

    @property
    def stopped(self) -> str | None:
        """Why it was stopped, or ``None``."""


ClaimCheck = Callable[[Stoppable], Awaitable[None]]
"""Returns while a claim stands; otherwise cancels its handler."""


class Context:
    """The surroundings of one attempt. Each part is made on first use, because most handlers need few of them."""

    __slots__ = (
        "_answered",
        "_asks",
        "_began",
        "_clients",
        "_coalesced",
        "_events",
        "_grouped",
        "_log",
        "_services",
        "_slack",
        "_threads",
        "_waits",
        "_work",
        "held",
    )

    def __init__(
        self,
        services: Services,
        events: Sequence[Event],
        work: Stoppable,
        *,
        grouped: bool = False,
        coalesced: bool = False,
    ) -> None:
        """Keep the arguments.

        Args:
            services: what all handlers share.
            events: the handler's events.
            work: what says whether the claim is lost.
            grouped: the events have an outcome each, so they have no steps.
            coalesced: all is kept with the first of the events: steps, and notes of replies.
        """
        self._services = services
        self._clients: SlackClients | None = None
        self._began = services.loop.time()
        self._events = events
        self._work = work
        self._grouped = grouped
        self._coalesced = coalesced
        self._threads: Threads | None = None
        self._slack: Replies | None = None
        self._log: Logger | None = None
        self._answered = False
        self.held = False
        """Whether a snooze holds back the event's group."""
        self._waits: Waits | None = None
        self._asks: Asks | None = None

    @property
    def installs(self) -> Refresher | None:
        """The installations of the app, for Bolt apps; ``None`` where installs are off."""
        return self._services.installs

    def is_authorized(self) -> bool:
        """Take the token of the first event's workspace if it is kept. Return false if it must be looked up."""
        tokens = self._services.tokens
        if tokens is not None:
            self._clients = tokens.kept(self._events[0].payload, self._began)
        return tokens is None or self._clients is not None

    async def authorize(self) -> None:
        """Take the token of the first event's workspace, which may be looked up.

        Raises:
            NotInstalledError: that workspace has not installed the app.
        """
        if self._services.tokens is not None:
            self._clients = await self._services.tokens.clients_for(self._events[0])

    @property
    def slack(self) -> Replies:
        """Replies that are sent once even if the attempt is repeated; ``slack.client`` is the plain Web API client."""
        if self._slack is None:
            check_claim = partial(self._services.check_claim, self._work)
            owner = self._events[0] if self._coalesced else None
            self._slack = Replies(
                self._clients or self._services.slack,
                self._services.engine,
                self.log,
                check_claim,
                owner=owner,
            )
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
    def threads(self) -> Threads:
        """What runs the handler and its steps if they are synchronous."""
        if self._threads is None:
            self._threads = Threads(lambda: self._work.stopped is not None)
        return self._threads

    @property
    def cancelled(self) -> bool:
        """Whether the event was cancelled, the lease is lost, the worker stops, or a synchronous function is overdue.

        A thread cannot be cancelled, so synchronous handlers and steps should ask.
        """
        return self._work.stopped is not None or (self._threads is not None and self._threads.overdue > 0)

    async def ack(
        self,
        body: Body | None = None,
        /,
        *,
        text: str | None = None,
        blocks: Sequence[Any] | None = None,
        response_type: ResponseType | None = None,
        response_action: ResponseAction | None = None,
        errors: Mapping[str, str] | None = None,
        view: Any = None,  # noqa: ANN401 - slack-sdk's, or a mapping
        options: Sequence[Any] | None = None,
        option_groups: Sequence[Any] | None = None,
    ) -> bool:
        """Answer a command or an interaction in the HTTP response to Slack's request.

        Only a handler that was registered with ``answers=True``, or by :meth:`Handlers.options`, has something to
        answer: the other events are acknowledged when they are claimed. Slack waits for three seconds, so an answer
        counts within 2.5 seconds of the request. Without arguments it is empty.

        Args:
            body: the whole answer, sent as it is: a mapping as JSON, a string as text.
            text: of a command's answer.
            blocks: of a command's answer.
            response_type: of a command's answer: ``ephemeral`` or ``in_channel``.
            response_action: what becomes of a modal: ``errors``, ``update``, ``push`` or ``clear``.
            errors: a message for each wrong input of a modal, by its ``block_id``.
            view: the modal that is updated or pushed.
            options: of a menu.
            option_groups: of a menu.

        The answer to a submitted modal may come later: then it replaces what the modal shows.

        Returns:
            Whether the person sees the answer. ``False``: it came too late or the person has closed the modal, Slack's
            request has an answer already, the claim no longer stands, or the database is away. Then go on with
            ``ctx.slack.reply``, which answers through the ``response_url``.

        Raises:
            AnswerError: the event's kind does not take such an answer.
        """
        parts = {
            "text": text,
            "blocks": blocks,
            "response_type": response_type,
            "response_action": response_action,
            "errors": errors,
            "view": view,
            "options": options,
            "option_groups": option_groups,
        }
        event = self._events[0]
        answer = answer_text(event.kind, body, parts)
        if self._answered:
            return False
        taken = await self._services.answers.answer(event, answer)
        if event.kind == SUBMISSION:
            if not taken:  # ingest's answer may still be on its way to the modal, and would replace this one
                await asyncio.sleep(TRIGGER_LIVES + MARGIN - self._age())
            taken = await answer_modal(self.slack, event, answer, taken=taken)
        self._answered = taken
        return taken

    def conclude(self, *, completed: bool) -> None:
        """Answer Slack's request with nothing, after a handler that was to answer and did not.

        A modal would close as if its input were accepted: it waits for another attempt unless the event ``completed``.
        """
        if not self._answered and (completed or self._events[0].kind != SUBMISSION):
            self._services.answers.acknowledge(self._events[0])

    @property
    def trigger_expired(self) -> bool:
        """Whether the event's ``trigger_id`` is older than the three seconds in which it opens a modal.

        Its age counts from the moment at which the event was stored, by the database's clock.
        """
        return bool(self._events[0].payload.get("trigger_id")) and self._age() > TRIGGER_LIVES

    def _age(self) -> float:
        """Return the seconds since the event was stored."""
        event = self._events[0]
        claimed_at = event.vt - self._services.settings.lease
        return (claimed_at - event.event_ts).total_seconds() + self._services.loop.time() - self._began

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,  # noqa: ANN401 - the function's
        retries: int = 0,
        timeout: Pause | None = None,
        **named: Any,  # noqa: ANN401 - the function's
    ) -> Any:  # noqa: ANN401 - the function's result
        """Call a function once for the event, and return its result in this and in every later attempt.

        The first success is stored before this returns. A synchronous function runs in a thread. The result goes
        through JSON: annotate the function's return type to get a pydantic model or a dataclass.

        Args:
            name: the step's name. A name that is used again counts up, so loops work.
            function: the function.
            arguments: its arguments.
            retries: how many more times it is called in this attempt after it failed.
            timeout: how long each call may take.
            named: its keyword arguments.

        Raises:
            StepError: the result is not JSON, or has more than a million bytes.
            StepMismatchError: the step does not fit what is stored under its name.
            ClaimLostError: the worker has lost its claim of the event; nothing was stored.
        """
        return await self._waiting.steps.run(
            name, function, arguments, named, retries=retries, timeout=timeout
        )

    async def sleep(self, pause: Pause, *, name: str = "sleep", blocking: bool = False) -> None:
        """Suspend the handler for a time: it holds no slot meanwhile, and runs again from its top.

        Args:
            pause: how long, at most 3,650 days. The time runs from the first attempt that gets here.
            name: the name under which the sleep is stored.
            blocking: the later events of the event's group wait. Otherwise they go on.
        """
        await self._waiting.sleep(pause, name, blocking=blocking)

    async def wait_for(
        self,
        name: str,
        *,
        timeout: Pause | None = None,
        default: Any = None,  # noqa: ANN401 - the caller's
        blocking: bool = False,
    ) -> Any:  # noqa: ANN401 - any JSON value
        """Return the next value that is sent to the event under a name; see :meth:`surelane.Queue.signal`.

        The handler is suspended until it comes, as by :meth:`sleep`. A value that was sent before counts.

        Args:
            name: the name. It does not end in a colon and a number: such signals answer questions.
            timeout: how long to wait, at most 3,650 days.
            default: what to return when the time has passed.
            blocking: as for :meth:`sleep`.
        """
        if re.search(":[0-9]+$", name):
            raise StepError(f"{name!r} names a question, not a wait: leave out the colon and the number")
        signal = await self._waiting.signal(name, timeout, blocking=blocking)
        return default if signal is None else signal.value

    async def ask(
        self,
        event: Event,
        text: str,
        choices: Sequence[str] | None = None,
        *,
        timeout: Pause | None = None,
        by: People = None,
        name: str = "ask",
        blocking: bool = False,
        **arguments: Any,  # noqa: ANN401 - chat.postMessage's
    ) -> Answer | None:
        """Ask in Slack, and suspend the handler until somebody answers. The first answer counts.

        The message then shows who chose what. A later click is told that it is decided.

        Args:
            event: the event in whose thread to ask.
            text: the question.
            choices: up to five are buttons, more a menu. Without choices people write a text in a modal.
            timeout: how long to wait, at most 3,650 days.
            by: who may answer: a user's id, several, or a function of an id, which runs as a step; by default
                everybody who sees the message.
            name: the name under which the question is stored.
            blocking: the later events of the event's group wait. Otherwise they go on.
            arguments: any of ``chat.postMessage``'s; ``channel`` and ``thread_ts`` ask elsewhere.

        Returns:
            The answer; ``None`` past the timeout.

        Raises:
            NowhereToReplyError: the event names no channel.
            SlackApiError: Slack refused the message.
        """
        return await self._asking.ask(
            event, text, choices, timeout, by, name, blocking=blocking, arguments=arguments
        )

    @asynccontextmanager
    async def stoppable(
        self, event: Event, text: str = "Working…", *, by: str | Sequence[str] | None = None
    ) -> AsyncIterator[None]:
        """Show a message with a Stop button while the block runs. A click cancels the event.

        The message goes once the block ends. It stays while the handler is suspended or waits for another attempt.

        Args:
            event: the event in whose thread to show it.
            text: what the message says.
            by: the users who may stop it; by default everybody who sees the message.
        """
        posted = await self._asking.show_stop(event, text, by)
        yield
        await self._asking.remove(posted)

    @property
    def engine(self) -> Engine:
        """The worker's own calls, for the built-in handlers."""
        return self._services.engine

    @property
    def _asking(self) -> Asks:
        if self._asks is None:
            self._asks = Asks(self._waiting.steps, self._waiting, self.slack)
        return self._asks

    @property
    def waited(self) -> bool:
        """Whether the handler used steps or waits."""
        return self._waits is not None

    @property
    def suspend(self) -> Suspend | None:
        """The outcome of a handler that a wait has suspended; ``None`` if none has."""
        return None if self._waits is None else self._waits.suspend

    def unasked_steps(self) -> list[str]:
        """Return the steps that earlier attempts stored and this one did not ask for."""
        return [] if self._waits is None else self._waits.steps.unasked()

    @property
    def _waiting(self) -> Waits:
        """The event's waits, with its steps."""
        if self._waits is None:
            check_claim = partial(self._services.check_claim, self._work)
            steps = Steps(
                self._services.engine,
                self._events[0],
                self.log,
                check_claim,
                grouped=self._grouped,
                retries=self._services.step_retries,
                threads=self.threads,
            )
            self._waits = Waits(steps)
        return self._waits

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine, such as ``ctx.slack.reply(…)``, from a synchronous handler and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._services.loop).result()
