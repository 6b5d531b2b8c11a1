"""Run the listeners of an ``App`` in a thread of their own.

This module does for threads what :mod:`surelane_bolt.asynchronous` does for tasks. Each call to Slack runs on
the worker's event loop, and the listener's thread waits for it. A thread cannot be cancelled: after a lost lease its
calls are refused.
"""

import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from logging import Logger
from typing import Any, cast

from slack_bolt import App, BoltContext, BoltRequest, BoltResponse
from slack_bolt.lazy_listener.runner import LazyListenerRunner
from slack_bolt.listener.listener_error_handler import DefaultListenerErrorHandler

from surelane.events import Event
from surelane_bolt.attempt import BoltAttempt, Owned, current, failed, prepare
from surelane_bolt.calls import point_at
from surelane_worker.handling.context import Context
from surelane_worker.handling.handler import Call, Given, threaded


def handler_of(app: App) -> Call:
    """Return a handler that runs the app's listeners. From now on, the app runs nowhere else."""
    own = prepare(app, _Lazy)

    def note(error: Exception, request: BoltRequest, response: BoltResponse) -> None:
        attempt = failed(error)
        if not isinstance(own, DefaultListenerErrorHandler):
            with attempt.noting_errors():
                own.handle(error=error, request=request, response=response)

    app.error(note)

    def handle(event: Given, ctx: Context) -> object:
        point_at(app.client, ctx.settings.slack_api_url)
        attempt = BoltAttempt(cast("Event", event), ctx, threaded=True)
        request = BoltRequest(body=attempt.body, mode="socket_mode")
        attempt.take(request, _Context)
        with attempt.within():
            response = app.dispatch(request)
        if (response.status < 300 or attempt.unmatched(response)) and not attempt.errors:
            ctx.run(attempt.acknowledge(response))
        for thread in attempt.lazies:
            thread.join()
        return attempt.outcome(response, authorized=request.context.authorize_result is not None)

    return threaded(handle)


@dataclass
class _Lazy(LazyListenerRunner):
    """Start lazy listeners in threads that the attempt waits for. Start none after the listener failed.

    The threads are daemons: a stopping worker does not wait for them.
    """

    logger: Logger

    def start(self, function: Callable[..., None], request: BoltRequest) -> None:
        attempt = current.get()
        if attempt is None or attempt.errors:
            return

        part = len(attempt.lazies) + 1

        @wraps(function)
        def noted(*args: Any, **arguments: Any) -> None:
            with attempt.noting_errors(part):
                function(*args, **arguments)

        run = partial(contextvars.copy_context().run, self.run, noted, request)
        thread = threading.Thread(target=run, name="lazy listener", daemon=True)
        attempt.lazies.append(thread)
        thread.start()


class _Context(Owned, BoltContext):
    """The request's context."""
