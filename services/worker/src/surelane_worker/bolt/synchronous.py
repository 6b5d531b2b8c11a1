"""Run the listeners of an ``App`` in a thread of their own.

This module does for threads what :mod:`surelane_worker.bolt.asynchronous` does for tasks. Each call to Slack runs on
the worker's event loop, and the listener's thread waits for it. A thread cannot be cancelled: after a lost lease its
calls are refused.
"""

import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from logging import Logger
from typing import Any, cast

from slack_bolt import Ack, App, BoltContext, BoltRequest, BoltResponse, Respond
from slack_bolt.lazy_listener.runner import LazyListenerRunner
from slack_bolt.listener.listener_error_handler import DefaultListenerErrorHandler
from slack_sdk.web.async_slack_response import AsyncSlackResponse
from slack_sdk.web.client import WebClient
from slack_sdk.web.slack_response import SlackResponse
from slack_sdk.webhook import WebhookResponse

from surelane.events import Event
from surelane_worker.bolt.attempt import ERROR_HANDLER, LISTENER, Attempt, Owned, Started, current, message_of
from surelane_worker.bolt.calls import point_at
from surelane_worker.handling.context import Context
from surelane_worker.handling.handler import Call, Given, threaded


def handler_of(app: App) -> Call:
    """Return a handler that runs the app's listeners. From now on, the app runs nowhere else."""
    runner = app.listener_runner
    runner.process_before_response = True
    runner.lazy_listener_runner = cast("Any", _Lazy(runner.logger))
    runner.listener_start_handler = cast("Any", Started(runner.listener_start_handler))
    own = runner.listener_error_handler

    def note(error: Exception, request: BoltRequest, response: BoltResponse) -> None:
        attempt = current.get()
        if attempt is None:
            raise error
        attempt.note_error(error)
        if not isinstance(own, DefaultListenerErrorHandler):
            with attempt.noting_errors(), attempt.within(ERROR_HANDLER):
                own.handle(error=error, request=request, response=response)

    app.error(note)
    app.client.api_call = _marked(app.client, None)  # type: ignore[method-assign]

    def handle(event: Given, ctx: Context) -> object:
        point_at(app.client, ctx.settings.slack_api_url)
        return _run(app, cast("Event", event), ctx)

    return threaded(handle)


def _run(app: App, event: Event, ctx: Context) -> object:
    attempt = _Attempt(event, ctx)
    request = BoltRequest(body=dict(event.payload), mode="socket_mode")
    request.context = _Context(attempt, request.context)
    request.context["ack"] = _Ack(attempt)
    request.context["respond"] = _Respond(attempt, response_url=request.context.response_url)
    with attempt.within(LISTENER):
        response = app.dispatch(request)
    if (response.status < 300 or attempt.unmatched(response)) and not attempt.errors:
        ctx.run(attempt.acknowledge(response))
    for thread in attempt.threads:
        thread.join()
    return attempt.outcome(response, authorized=request.context.authorize_result is not None)


@dataclass(eq=False)
class _Attempt(Attempt):
    """An attempt, with the threads of its lazy listeners."""

    threads: list[threading.Thread] = field(default_factory=list)


@dataclass
class _Lazy(LazyListenerRunner):
    """Start lazy listeners in threads that the attempt waits for. Start none after the listener failed.

    The threads are daemons: a stopping worker does not wait for them.
    """

    logger: Logger

    def start(self, function: Callable[..., None], request: BoltRequest) -> None:
        attempt = current.get()
        if not isinstance(attempt, _Attempt) or attempt.errors:
            return

        @wraps(function)
        def noted(*args: Any, **arguments: Any) -> None:
            with attempt.noting_errors():
                function(*args, **arguments)

        with attempt.within(len(attempt.threads) + 1):
            run = partial(contextvars.copy_context().run, self.run, noted, request)
        thread = threading.Thread(target=run, name="lazy listener", daemon=True)
        attempt.threads.append(thread)
        thread.start()


class _Context(Owned, BoltContext):
    """A context that marks the client which Bolt puts into it."""

    def __setitem__(self, name: str, value: object) -> None:
        if name == "client" and isinstance(value, WebClient):
            value.api_call = _marked(value, self._attempt)  # type: ignore[method-assign]
        super().__setitem__(name, value)


class _Ack(Owned, Ack):
    """``ack(…)``: answers at once."""

    def __call__(self, *args: Any, **arguments: Any) -> BoltResponse:
        response = super().__call__(*args, **arguments)
        self._attempt.ctx.run(self._attempt.acknowledge(response))
        return response


class _Respond(Owned, Respond):
    """``respond(…)``: posts once, through the worker's client, which checks the URL."""

    def __call__(self, *args: Any, **arguments: Any) -> WebhookResponse:
        if self.response_url is None:
            return super().__call__(*args, **arguments)
        message, attempt = message_of(*args, **arguments), self._attempt
        return attempt.ctx.run(attempt.respond(self.response_url, message, attempt.part))


def _marked(client: WebClient, attempt: Attempt | None) -> Callable[..., SlackResponse]:
    """Return an ``api_call`` that sends through ``attempt``; ``None``: through the attempt that runs at the call."""
    plain = client.api_call

    def api_call(api_method: str, **request: Any) -> SlackResponse:
        of = attempt or current.get()
        if of is None:
            return plain(api_method, **request)
        return _as_sync(client, of.ctx.run(of.calls.send(of.part, client, api_method, request)))

    return api_call


def _as_sync(client: WebClient, answer: AsyncSlackResponse) -> SlackResponse:
    return SlackResponse(
        client=client,
        http_verb=answer.http_verb,
        api_url=answer.api_url,
        req_args=answer.req_args,
        data=answer.data,
        headers=answer.headers,
        status_code=answer.status_code,
    )
