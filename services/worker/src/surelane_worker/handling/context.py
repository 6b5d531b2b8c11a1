"""What a handler may use in one attempt, as ``ctx``."""

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar, Unpack, overload

from surelane.events import Event
from surelane.jobs import Continuation, Job, Priority
from surelane.queue import Queue
from surelane_service.logs import Logger
from surelane_worker.handling.answers import SUBMISSION, Body, Parts, answer_modal, answer_text
from surelane_worker.handling.asks import Answer, People
from surelane_worker.handling.attempt import Attempt, set_tags
from surelane_worker.handling.children import IfFailed, run_child
from surelane_worker.handling.outcomes import Anew, FanOut, Pause
from surelane_worker.handling.shapes import StepCall, StepMismatchError
from surelane_worker.handling.transactions import Transaction
from surelane_worker.slack.replies import Replies
from surelane_worker.worker_settings import WorkerSettings

Result = TypeVar("Result")

TRIGGER_LIVES = 3.0
"""Seconds for which Slack takes a ``trigger_id``, and waits for an answer."""
MARGIN = 0.5
"""Seconds that ingest's answer may take to a person's modal."""


def attempt_of(context: "Context") -> Attempt:
    """Return the attempt of a context, for our own handlers."""
    return context._attempt  # noqa: SLF001 - a team's handlers see what is documented


class Context:
    """What a handler may use in one attempt, as ``ctx``."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    @property
    def slack(self) -> Replies:
        """Replies that are sent once even if the attempt is repeated; ``slack.client`` is the plain Web API client."""
        self._attempt.check()
        return self._attempt.replies

    @property
    def queue(self) -> Queue:
        """The queue: enqueue further jobs, cancel and reschedule them, read the children of a workflow."""
        self._attempt.check()
        return self._attempt.queue

    @property
    def settings(self) -> WorkerSettings:
        """The worker's settings."""
        return self._attempt.services.settings

    @property
    def log(self) -> Logger:
        """A logger whose lines carry the event's id, kind and attempt."""
        return self._attempt.log

    @property
    def attempt(self) -> int:
        """The number of this attempt. It begins anew after an attempt that stored something new."""
        return self._attempt.events[0].attempts

    @property
    def cancelled(self) -> bool:
        """Whether the event was cancelled, the lease is lost, the worker stops, or a synchronous function is overdue.

        A thread cannot be cancelled, so synchronous handlers and steps should ask.
        """
        return self._attempt.stopped

    async def ack(self, body: Body | None = None, /, **parts: Unpack[Parts]) -> bool:
        """Answer a command or an interaction in the HTTP response to Slack's request.

        Only a handler that was registered with ``answers=True``, or by :meth:`Handlers.options`, has something to
        answer: the other events are acknowledged when they are claimed. Slack waits for three seconds, so an answer
        counts within 2.5 seconds of the request. Without arguments it is empty.

        Args:
            body: the whole answer, sent as it is: a mapping as JSON, a string as text. ``False`` refuses a command or
                a modal: Slack tells the person that it failed.
            text, blocks, response_type: of a command's answer, which is ``ephemeral`` or ``in_channel``.
            response_action: what becomes of a modal: ``errors``, ``update``, ``push`` or ``clear``.
            errors: a message for each wrong input of a modal, by its ``block_id``.
            view: the modal that is updated or pushed.
            options, option_groups: of a menu.

        The answer to a submitted modal may come later: then it replaces what the modal shows.

        Returns:
            Whether the person sees the answer. ``False``: it came too late or the person has closed the modal, Slack's
            request has an answer already, the claim no longer stands, or the database is away. Then go on with
            ``ctx.slack.reply``, which answers through the ``response_url``.

        Raises:
            AnswerError: the event's kind does not take such an answer.
        """
        attempt = self._attempt
        attempt.check()
        event = attempt.events[0]
        answer = answer_text(event.kind, body, parts)
        if attempt.answered:
            return False
        await attempt.finalize()
        taken = await attempt.services.answers.answer(event, answer)
        if event.kind == SUBMISSION:
            if not taken:  # ingest's answer may still be on its way to the modal, and would replace this one
                await asyncio.sleep(TRIGGER_LIVES + MARGIN - attempt.age())
            taken = await answer_modal(self.slack, attempt.notebooks.of(event), event, answer, taken=taken)
        attempt.answered = taken
        return taken

    @property
    def trigger_expired(self) -> bool:
        """Whether the event's ``trigger_id`` is older than the three seconds in which it opens a modal.

        Its age counts from the moment at which the event was stored, by the database's clock.
        """
        return bool(self._attempt.events[0].payload.get("trigger_id")) and self._attempt.age() > TRIGGER_LIVES

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        key: object = None,
        retries: int = 0,
        backoff: Pause | None = None,
        timeout: Pause | None = None,
        **named: Any,
    ) -> Any:
        """Call a function once for the event, and return its result in this and in every later attempt.

        The first success is stored before this returns. A synchronous function runs in a thread. The result goes
        through JSON: annotate the function's return type to get a pydantic model or a dataclass.

        Args:
            name: the step's name. A name that is used again counts up, so loops work.
            function, arguments, named: what is called.
            key: names the step among several of one name that run at once, such as the item that each is for.
            retries: how many more times it is called after it failed.
            backoff: the pause after its first failure; by default a second. The pause after the second failure is
                four times as long, then nine times. A pause longer than two seconds suspends the handler.
            timeout: how long each call may take.

        Raises:
            StepError: the function has failed. If the handler goes on, later attempts raise it here again. So they do
                in any case if the result is not JSON or has more than 16 million bytes.
            StepMismatchError: the step does not fit what is stored under its name, another task runs one of that
                name, or its function is annotated with a type that JSON cannot hold.
            ClaimLostError: the worker has lost its claim of the event; nothing was stored.
        """
        call = StepCall(function, arguments, named, retries, backoff, timeout)
        return await self._attempt.steps.run(name, call, key)

    async def undo(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        retries: int = 0,
        backoff: Pause | None = None,
        timeout: Pause | None = None,
        **named: Any,
    ) -> None:
        """Register a function that is called if the event fails for good, expires or is cancelled.

        Those that are registered by then run in reverse order, before the event ends. Each is a step, ``undo`` and its
        name. Register it before the step that it undoes: so it also runs if that step did something and then failed.

        Args:
            name: the undo's name. A name that is used again counts up.
            function, arguments, named: what is called.
            retries, backoff, timeout: as for :meth:`step`.

        Raises:
            StepMismatchError: as for :meth:`step`.
            ClaimLostError: the worker has lost its claim of the event; nothing was stored.
        """
        await self._attempt.steps.undo(name, StepCall(function, arguments, named, retries, backoff, timeout))

    async def patched(self, name: str) -> bool:
        """Return whether a change of the code is for this run: false if the run was past this point before the change.

        A run is past this point if it has stored a step or a wait that its handler has not asked for by now. The answer
        is stored under the change's ``name``: the run always gets the same one.
        """
        return await self._attempt.steps.patched(name)

    async def sleep(self, pause: Pause, *, name: str = "sleep", blocking: bool = False) -> None:
        """Suspend the handler for a time: it holds no slot meanwhile, and runs again from its top.

        Args:
            pause: how long, at most 3,650 days. The time runs from the first attempt that gets here.
            name: under which the sleep is stored.
            blocking: the later events of the event's group wait. Otherwise they go on.
        """
        await self._attempt.steps.sleep(pause, name, blocking=blocking)

    async def wait_for(
        self, name: str, *, timeout: Pause | None = None, default: Any = None, blocking: bool = False
    ) -> Any:
        """Return the next value that is sent to the event under a name; see :meth:`surelane.Queue.signal`.

        The handler is suspended until it comes, as by :meth:`sleep`. A value that was sent before counts.

        Args:
            name: does not end in a colon and a number: such signals answer questions.
            timeout: how long to wait, at most 3,650 days. After that ``default`` is returned.
            blocking: as for :meth:`sleep`.
        """
        if re.search(":[0-9]+$", name):
            raise StepMismatchError(f"{name!r} names a question: leave out the colon and the number")
        signal = await self._attempt.steps.signal(name, timeout, blocking=blocking)
        return default if signal is None else signal.value

    async def ask(
        self,
        event: Event,
        text: str,
        choices: Sequence[str] | None = None,
        *,
        written: Mapping[str, str] | None = None,
        timeout: Pause | None = None,
        by: People = None,
        name: str = "ask",
        blocking: bool = False,
        **arguments: Any,
    ) -> Answer | None:
        """Ask in Slack, and suspend the handler until somebody answers. The first answer counts.

        The message then shows who chose what. A later click is told that it is decided.

        Args:
            event: the event in whose thread to ask.
            text: the question.
            choices: up to five are buttons, more a menu. Without choices people write a text in a modal.
            written: the choices that take a text, and what each text begins with: a click on one opens a modal.
                The answer has the choice and its ``text``.
            timeout: how long to wait, at most 3,650 days.
            by: who may answer: a user's id, several, or a function of an id, which runs as a step; by default
                everybody who sees the message.
            name, blocking: as for :meth:`sleep`.
            arguments: any of ``chat.postMessage``'s; ``channel`` and ``thread_ts`` ask elsewhere.

        Returns:
            The answer; ``None`` past the timeout.

        Raises:
            StepError: the event names no channel, or Slack refused the message.
            AskError: Slack would refuse the question, such as a choice of more than 75 characters. The event fails.
        """
        return await self._attempt.asks.ask(
            event, text, choices, timeout, by, name, written=written, blocking=blocking, arguments=arguments
        )

    def stoppable(
        self, event: Event, text: str = "Working…", *, by: str | Sequence[str] | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Show a message with a Stop button while the block runs. A click cancels the event.

        The message goes once the block ends. It stays while the handler is suspended or waits for another attempt.

        Args:
            event, text: in whose thread to show the message, and what it says.
            by: the users who may stop it; by default everybody who sees the message.
        """
        return self._attempt.asks.stoppable(event, text, by)

    async def tag(self, **tags: str | float | None) -> None:
        """Set tags of the event, such as ``customer="acme"``, by which operators find it. ``None`` removes one.

        An event has at most 10. A name has at most 40 characters and a value 200. A handler of several events sets
        them for each.

        Raises:
            TagError: a tag cannot be used; none was set.
            ClaimLostError: the worker has lost its claim of the event; nothing was stored.
        """
        await self._attempt.finalize()
        await set_tags(map(self._attempt.fence, self._attempt.events), tags)

    async def progress(self, text: str) -> None:
        """Show operators how far the handler is. The last text counts, and at most 200 characters of it.

        This does not wait until it is stored: at most once a second, and when the attempt ends.
        """
        self._attempt.progress.say(text)

    async def transaction(
        self, name: str, connection: object, function: Callable[..., Any], *arguments: Any, **named: Any
    ) -> Any:
        """Call a function in a transaction of yours, which also stores its result: its writes are done exactly once.

        As :meth:`step`, but the function gets the connection as its first argument. The transaction begins before the
        call, and commits with the step, or rolls back with the function's exception. The function itself must not end
        it.

        Args:
            name, arguments, named: as for :meth:`step`.
            connection: what :class:`surelane.Queue` or ``surelane_drivers.SyncQueue`` takes, on the queue's database,
                outside of a transaction. Its role is a member of ``agent_producer``.
            function: is synchronous with a synchronous connection, and then runs in a thread.

        Raises:
            StepMismatchError: as for :meth:`step`, or the function has ended the transaction.
            ClaimLostError: the worker has lost its claim of the event; the transaction was rolled back.
        """
        return await Transaction(self._attempt.steps, connection, function).run(name, arguments, named)

    def continue_as_new(self, payload: Mapping[str, Any]) -> FanOut:
        """Return the outcome that completes the event and begins its successor, without steps; return it.

        The successor has the event's key, group, kind, priority and trace, and comes first in its group. One
        transaction ends the one and stores the other. ``payload`` is the successor's.
        """
        return Anew((), Continuation(self._attempt.events[0].kind, payload))

    @overload
    def run(self, what: Coroutine[Any, Any, Result]) -> Result: ...

    @overload
    def run(
        self,
        what: str,
        payload: Any = None,
        *,
        key: object = None,
        priority: Priority = 1,
        max_attempts: int | None = None,
        group_key: str | None = None,
        if_failed: IfFailed = "cancel",
        blocking: bool = False,
    ) -> Coroutine[Any, Any, Any]: ...

    def run(
        self,
        what: Coroutine[Any, Any, Any] | str,
        payload: Any = None,
        *,
        key: object = None,
        priority: Priority = 1,
        max_attempts: int | None = None,
        group_key: str | None = None,
        if_failed: IfFailed = "cancel",
        blocking: bool = False,
    ) -> Any:
        """Start a job of a kind as a child, and suspend the handler until it has ended; return its result.

        The child is started once, and its result is stored. Of a coroutine, such as ``ctx.slack.reply(…)``, a
        synchronous handler gets the result: the call blocks its thread.

        Args:
            what: the child's kind, or a coroutine.
            payload, priority, max_attempts, group_key: the child's.
            key: names the child among several of one kind, such as the item that it is for.
            if_failed: what becomes of a child that lives where the handler's event fails, expires or is cancelled:
                ``cancel`` it, and undo once it has ended; ``await`` its end first; ``leave`` it alone.
            blocking: as for :meth:`sleep`. Not with the event's own group: each would wait for the other.

        Raises:
            ChildError: the child failed, expired or was cancelled.
            StepMismatchError: the child was started with another payload, or is in the group that it blocks.
            TypeError: an asynchronous handler gave what is no kind.
        """
        if isinstance(what, str):
            given = {} if payload is None else payload
            child = Job(what, given, max_attempts=max_attempts, priority=priority, group_key=group_key)
            return run_child(lambda: self._attempt.steps, child, key, if_failed=if_failed, blocking=blocking)
        with suppress(RuntimeError):  # a thread has no loop
            if asyncio.get_running_loop() is self._attempt.services.loop:
                raise TypeError("ctx.run of a coroutine is for synchronous handlers: await it here")
        called = self._attempt.called(what, threading.get_ident())
        return asyncio.run_coroutine_threadsafe(called, self._attempt.services.loop).result()
