"""Run the listeners of an ``AsyncApp`` on the worker's event loop, by public parts of slack-bolt alone."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, cast

from slack_bolt.async_app import AsyncApp, AsyncBoltContext, AsyncBoltRequest
from slack_bolt.lazy_listener.asyncio_runner import AsyncioLazyListenerRunner
from slack_bolt.listener.async_listener_error_handler import AsyncDefaultListenerErrorHandler
from slack_bolt.response import BoltResponse

from surelane.events import Event
from surelane_bolt.attempt import BoltAttempt, Owned, current, failed, prepare
from surelane_bolt.calls import point_at
from surelane_worker.handling.context import Context
from surelane_worker.handling.handler import Call, Given


def handler_of(app: AsyncApp) -> Call:
    """Return a handler that runs the app's listeners. From now on, the app runs nowhere else."""
    own = prepare(app, _AsyncLazy)

    async def note(error: Exception, request: AsyncBoltRequest, response: BoltResponse) -> None:
        attempt = failed(error)
        if not isinstance(own, AsyncDefaultListenerErrorHandler):
            with attempt.noting_errors():
                await own.handle(error=error, request=request, response=response)

    app.error(note)

    async def handle(event: Given, ctx: Context) -> object:
        point_at(app.client, ctx.settings.slack_api_url)
        attempt = BoltAttempt(cast("Event", event), ctx, threaded=False)
        request = AsyncBoltRequest(body=attempt.body, mode="socket_mode")
        attempt.take(request, _AsyncContext)
        try:
            with attempt.within():
                response = await app.async_dispatch(request)
            if (response.status < 300 or attempt.unmatched(response)) and not attempt.errors:
                await attempt.acknowledge(response)
            if attempt.lazies:
                await asyncio.wait(attempt.lazies)
        finally:
            for ended in attempt.lazies:
                ended.cancel()
        return attempt.outcome(response, authorized=request.context.authorize_result is not None)

    return handle


class _AsyncLazy(AsyncioLazyListenerRunner):
    """Start lazy listeners as tasks that the attempt waits for. Start none after the listener failed."""

    def start(self, function: Callable[..., Awaitable[None]], request: AsyncBoltRequest) -> None:
        attempt = current.get()
        if attempt is None or attempt.errors:
            return
        # Cancelled, it stops the listener, or keeps it from starting.
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        attempt.lazies.append(ended)
        part = len(attempt.lazies)

        @wraps(function)
        async def noted(*args: Any, **arguments: Any) -> None:
            task = asyncio.current_task()
            if task is None or ended.cancelled():
                return
            ended.add_done_callback(lambda _: task.cancel())  # it has ended, if it is not stopped
            try:
                with attempt.noting_errors(part):
                    await function(*args, **arguments)
            finally:
                if not ended.cancelled():
                    ended.set_result(None)

        super().start(noted, request)


class _AsyncContext(Owned, AsyncBoltContext):
    """The request's context."""
