"""Keep the state of one attempt of a Bolt app at an event: its errors, its answer, and the part that runs now."""

import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self

from slack_bolt import Ack, Respond
from slack_bolt.error import BoltUnhandledRequestError
from slack_bolt.response import BoltResponse
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.slack_response import SlackResponse
from slack_sdk.webhook import WebhookResponse

from surelane.events import Event
from surelane_bolt.calls import Client, SlackCalls
from surelane_service.subscriptions import COMMAND
from surelane_worker.handling.answers import REFUSED, SUBMISSION
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.handling.outcomes import Complete
from surelane_worker.handling.routes import is_interactive
from surelane_worker.slack.client import ResponseRefusedError, SentenceError
from surelane_worker.slack.marks import without_marks

LISTENER = 0
"""The part that runs middleware and the listener. Lazy listeners are the parts 1, 2 and so on."""
ERROR_HANDLER = 998
LATE_ANSWER = 999
ANSWERED = "bolt:ack"
"""The name of the note that a command's answer was sent."""

RESPOND = ("text", "blocks", "attachments", "response_type", "replace_original", "delete_original")
"""The parameters of Bolt's ``respond``, in their order."""

current: ContextVar["BoltAttempt | None"] = ContextVar("attempt", default=None)
"""The attempt in which this task or thread runs."""
_part: ContextVar[int] = ContextVar("part", default=LISTENER)


class NotAuthorizedError(SentenceError):
    """The app has no token for the event's workspace, so none of its listeners ran."""


class AppRefusedError(Exception):
    """The app refused an event with a status of 5xx."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the app answered {status}")


@dataclass(eq=False)
class BoltAttempt:
    """An attempt at one event."""

    event: Event
    ctx: Context
    threaded: bool
    """Whether its listeners run in threads."""
    errors: list[Exception] = field(default_factory=list)
    """The exceptions of the listener, its lazy listeners and the middleware, in the order of time."""
    lazies: list[Any] = field(default_factory=list)
    """The lazy listeners: futures that are done when they have ended, or threads."""
    ran: bool = False
    """Whether a listener was found."""
    unhandled: bool = False
    _answered: bool = False
    _responded: bool = False

    def __post_init__(self) -> None:
        self.calls = SlackCalls(self.event, self.ctx)

    @property
    def body(self) -> dict[str, Any]:
        """What Slack sent, for the app: messages of its own have no marks of replies."""
        body: dict[str, Any] = without_marks(self.event.payload)
        return body

    def take(self, request: Any, context: type[Any]) -> None:
        """Give a request a context that belongs to this attempt."""
        request.context = context(self, request.context)
        request.context["ack"] = _Ack(self)
        request.context["respond"] = _Respond(self, response_url=request.context.response_url)

    def waited(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Return a call for a listener that awaits it, or its result for one that runs in a thread."""
        return self.ctx.run(call) if self.threaded else call

    @contextmanager
    def within(self, part: int = LISTENER) -> Iterator[None]:
        attempt, running = current.set(self), _part.set(part)
        try:
            yield
        finally:
            _part.reset(running)
            current.reset(attempt)

    def note_error(self, error: Exception) -> None:
        if isinstance(error, BoltUnhandledRequestError):
            self.unhandled = True
        else:
            self.errors.append(error)

    @contextmanager
    def noting_errors(self, part: int = ERROR_HANDLER) -> Iterator[None]:
        """End the block without its exception: the attempt raises it once all parts have ended."""
        try:
            with self.within(part):
                yield
        except Exception as error:  # noqa: BLE001 - of the app, of any kind
            self.note_error(error)

    def unmatched(self, response: BoltResponse) -> bool:
        """Return whether no listener takes the event."""
        return not self.ran and (self.unhandled or response.status == 404)

    async def respond(self, url: str, message: dict[str, Any], part: int) -> WebhookResponse:
        """Answer through the ``response_url``, and return what Bolt's ``respond`` does. An app may ignore a refusal.

        A status of 5xx is raised, because another attempt may succeed.
        """
        self._responded, status = True, 200
        try:
            await self.calls.respond(part, message)
        except ResponseRefusedError as error:
            if (status := error.status) >= 500:
                raise
        return WebhookResponse(url=url, status_code=status, body="ok" if status == 200 else "", headers={})

    async def acknowledge(self, response: BoltResponse) -> BoltResponse:
        """Answer Slack's request with a response of ``ack``, if the request still waits. Only the first one counts.

        The text of a command goes through the ``response_url`` if it comes too late. A command or a modal that no
        listener takes is refused, so the person sees Slack's own message that it failed.
        """
        if not self._answered and is_interactive(self.event.kind):
            self._answered = True
            await self._answer(self.event.kind, response)
        return response

    async def _answer(self, kind: str, response: BoltResponse) -> None:
        body, notebook = _body(response), attempt_of(self.ctx).notebooks.of(self.event)
        if self.unmatched(response):
            await self.ctx.ack(REFUSED if kind.startswith(COMMAND) or kind == SUBMISSION else None)
        elif not (body and kind.startswith(COMMAND)):
            await self.ctx.ack(body or None)
        elif notebook.call(ANSWERED) is None:
            if not await self.ctx.ack(body):
                await self._answer_late(body)
            await notebook.note_call(ANSWERED, "sent")

    async def _answer_late(self, body: str | Mapping[str, object]) -> None:
        """Answer a command through its ``response_url``, if that still works. The listener goes on in any case."""
        if not self.event.payload.get("response_url"):
            return
        try:
            await self.calls.respond(LATE_ANSWER, dict(body) if isinstance(body, Mapping) else {"text": body})
        except ResponseRefusedError as error:
            self.ctx.log.info("the late answer to a command was refused", status=error.status)

    def outcome(self, response: BoltResponse, *, authorized: bool) -> Complete | None:
        """Return the attempt's outcome, once all its parts have ended. Raise the app's first exception, if any."""
        if self.errors:
            raise self.errors[0]
        if self.ran:
            return None
        if self.unmatched(response):
            self.ctx.log.debug("no listener takes this event; it is completed")
            return Complete({"unhandled": "no listener"})
        if response.status >= 500:
            raise AppRefusedError(response.status)
        if not authorized and (response.body or self._responded):
            raise NotAuthorizedError
        return None


def prepare(app: Any, lazy: Callable[..., Any]) -> Any:
    """Let an app of either sort report to the attempt that runs. Return the app's own error handler.

    ``lazy`` makes the runner of lazy listeners.
    """
    runner = app.listener_runner
    runner.process_before_response = True
    runner.lazy_listener_runner = lazy(runner.logger)
    runner.listener_start_handler = _Started(runner.listener_start_handler)
    mark(app.client, None)
    return runner.listener_error_handler


def failed(error: Exception) -> BoltAttempt:
    """Note an exception of the app, and return the attempt that runs."""
    attempt = current.get()
    if attempt is None:
        raise error
    attempt.note_error(error)
    return attempt


class _Started:
    """Stands before Bolt's own start handler, of either sort, and notes that a listener was found."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def handle(self, *given: Any, **named: Any) -> Any:
        if (attempt := current.get()) is not None:
            attempt.ran = True
        return self._own.handle(*given, **named)


class Owned:
    """An object of Bolt that belongs to an attempt. It stays the same when Bolt copies it for each lazy listener.

    A context marks the client that Bolt puts into it.
    """

    def __init__(self, attempt: BoltAttempt, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._attempt = attempt

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __setitem__(self, name: str, value: object) -> None:
        if name == "client" and isinstance(value, Client):
            mark(value, self._attempt)
        super().__setitem__(name, value)  # type: ignore[misc]  # contexts alone have items


class _Ack(Owned, Ack):
    """``ack(…)`` of either sort: answers at once."""

    def __call__(self, *args: Any, **arguments: Any) -> Any:
        return self._attempt.waited(self._attempt.acknowledge(super().__call__(*args, **arguments)))


class _Respond(Owned, Respond):
    """``respond(text, …)`` or ``respond(message)``: posts once, through the worker's client, which checks the URL."""

    def __call__(self, *args: Any, **arguments: Any) -> Any:
        if self.response_url is None:
            return super().__call__(*args, **arguments)
        given: dict[str, Any] = dict(zip(RESPOND, args, strict=False)) | arguments
        given = given["text"] if isinstance(given.get("text"), dict) else given  # a whole message
        message = {name: value for name, value in given.items() if value is not None}
        attempt = self._attempt
        return attempt.waited(attempt.respond(self.response_url, message, _part.get()))


class _Pages(SlackResponse):
    """An answer whose further pages have no marks of replies either."""

    def __next__(self) -> Self:
        super().__next__()  # type: ignore[no-untyped-call]
        self.data = without_marks(self.data)
        return self


def mark(client: Client, attempt: BoltAttempt | None) -> None:
    """Let a client send its calls through ``attempt``; ``None``: through the attempt that runs at the call."""
    plain: Callable[..., Any] = client.api_call

    def api_call(api_method: str, **request: Any) -> Any:
        of = attempt or current.get()
        if of is None:
            return plain(api_method, **request)
        sent = of.calls.send(_part.get(), client, api_method, request)
        if isinstance(client, AsyncWebClient):
            return sent
        answer = of.ctx.run(sent)
        shared = ("http_verb", "api_url", "req_args", "data", "headers", "status_code")
        return _Pages(client=client, **{name: getattr(answer, name) for name in shared})

    client.api_call = api_call  # type: ignore[method-assign]


def _body(response: BoltResponse) -> str | Mapping[str, object]:
    """Return the body of a response, parsed if it is a JSON object."""
    text: str = response.body or ""
    with suppress(ValueError):
        if text.startswith("{"):
            parsed: Mapping[str, object] = json.loads(text)
            return parsed
    return text
