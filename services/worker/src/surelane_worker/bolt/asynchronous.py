"""Run the listeners of an ``AsyncApp`` on the worker's event loop.

This module uses only public parts of slack-bolt. It makes the app's listener runner wait for listeners, and gives it an
error handler and a runner of lazy listeners, which report to the attempt. The request's context has our ``ack`` and
``respond``, and marks the client that Bolt makes for each request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, cast

from slack_bolt.async_app import AsyncAck, AsyncApp, AsyncBoltContext, AsyncBoltRequest, AsyncRespond
from slack_bolt.lazy_listener.asyncio_runner import AsyncioLazyListenerRunner
from slack_bolt.listener.async_listener_error_handler import AsyncDefaultListenerErrorHandler
from slack_bolt.response import BoltResponse
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse
from slack_sdk.webhook import WebhookResponse

from surelane.events import Event
from surelane_worker.bolt.attempt import ERROR_HANDLER, LISTENER, Attempt, Owned, Started, current, message_of
from surelane_worker.bolt.calls import point_at
from surelane_worker.handling.context import Context
from surelane_worker.handling.handler import Call, Given


def handler_of(app: AsyncApp) -> Call:
    """Return a handler that runs the app's listeners. From now on, the app runs nowhere else."""
    runner = app.listener_runner
    runner.process_before_response = True
    runner.lazy_listener_runner = _Lazy(runner.logger)
    runner.listener_start_handler = cast("Any", Started(runner.listener_start_handler))
    own = runner.listener_error_handler

    async def note(error: Exception, request: AsyncBoltRequest, response: BoltResponse) -> None:
        attempt = current.get()
        if attempt is None:
            raise error
        attempt.note_error(error)
        if not isinstance(own, AsyncDefaultListenerErrorHandler):
            with attempt.noting_errors(), attempt.within(ERROR_HANDLER):
                await own.handle(error=error, request=request, response=response)

    app.error(note)
    app.client.api_call = _marked(app.client, None)  # type: ignore[method-assign]

    async def handle(event: Given, ctx: Context) -> object:
        point_at(app.client, ctx.settings.slack_api_url)
        return await _run(app, cast("Event", event), ctx)

    return handle


async def _run(app: AsyncApp, event: Event, ctx: Context) -> object:
    attempt = _Attempt(event, ctx)
    request = AsyncBoltRequest(body=dict(event.payload), mode="socket_mode")
    request.context = _Context(attempt, request.context)
    request.context["ack"] = _Ack(attempt)
    request.context["respond"] = _Respond(attempt, response_url=request.context.response_url)
    try:
        with attempt.within(LISTENER):
            response = await app.async_dispatch(request)
        if (response.status < 300 or attempt.unmatched(response)) and not attempt.errors:
            await attempt.acknowledge(response)
        if attempt.lazies:
            await asyncio.wait(attempt.lazies)
    finally:
        for ended in attempt.lazies:
            ended.cancel()
    return attempt.outcome(response, authorized=request.context.authorize_result is not None)


@dataclass(eq=False)
class _Attempt(Attempt):
    """An attempt, with its lazy listeners."""

    lazies: list[asyncio.Future[None]] = field(default_factory=list)
    """Done when they have ended. Cancelled, each stops its listener, or keeps it from starting."""


class _Lazy(AsyncioLazyListenerRunner):
    """Start lazy listeners as tasks that the attempt waits for. Start none after the listener failed."""

    def start(self, function: Callable[..., Awaitable[None]], request: AsyncBoltRequest) -> None:
        attempt = current.get()
        if not isinstance(attempt, _Attempt) or attempt.errors:
            return
        ended = asyncio.get_running_loop().create_future()
        attempt.lazies.append(ended)

        @wraps(function)
        async def noted(*args: Any, **arguments: Any) -> None:
            task = asyncio.current_task()
            if task is None or ended.cancelled():
                return
            ended.add_done_callback(lambda _: task.cancel())  # it has ended, if it is not stopped
            try:
                with attempt.noting_errors():
                    await function(*args, **arguments)
            finally:
                if not ended.cancelled():
                    ended.set_result(None)

        with attempt.within(len(attempt.lazies)):
            super().start(noted, request)


class _Context(Owned, AsyncBoltContext):
    """A context that marks the client which Bolt puts into it."""

    def __setitem__(self, name: str, value: object) -> None:
        if name == "client" and isinstance(value, AsyncWebClient):
            value.api_call = _marked(value, self._attempt)  # type: ignore[method-assign]
        super().__setitem__(name, value)


class _Ack(Owned, AsyncAck):
    """``ack(…)``: answers at once."""

    async def __call__(self, *args: Any, **arguments: Any) -> BoltResponse:
        response = await super().__call__(*args, **arguments)
        await self._attempt.acknowledge(response)
        return response


class _Respond(Owned, AsyncRespond):
    """``respond(…)``: posts once, through the worker's client, which checks the URL."""

    async def __call__(self, *args: Any, **arguments: Any) -> WebhookResponse:
        if self.response_url is None:
            return await super().__call__(*args, **arguments)
        message = message_of(*args, **arguments)
        return await self._attempt.respond(self.response_url, message, self._attempt.part)


def _marked(
    client: AsyncWebClient, attempt: Attempt | None
) -> Callable[..., Coroutine[Any, Any, AsyncSlackResponse]]:
    """Return an ``api_call`` that sends through ``attempt``; ``None``: through the attempt that runs at the call."""
    plain = client.api_call

    async def api_call(api_method: str, **request: Any) -> AsyncSlackResponse:
        of = attempt or current.get()
        if of is None:
            return await plain(api_method, **request)
        return await of.calls.send(of.part, client, api_method, request)

    return api_call
