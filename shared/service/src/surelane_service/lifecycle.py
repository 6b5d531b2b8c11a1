"""How a service starts and ends: one event loop, two signals, documented exit codes."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar

import uvloop

from surelane.errors import SettingsError, SurelaneError
from surelane_service.logs import get_logger

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_SETTINGS = 2
EXIT_FORCED = 130

Main = Callable[[asyncio.Event], Awaitable[None]]
Result = TypeVar("Result")

RUN: ContextVar[object] = ContextVar("run", default=None)
"""The attempt that the current task works for."""


def apart(what: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
    """Begin a task that works for the whole service, although it is an attempt that needs it first."""
    with outside():
        return asyncio.create_task(what)


@contextmanager
def outside() -> Iterator[None]:
    """Let tasks that begin in the block work for no attempt, such as the readers of a connection, which do not end."""
    token = RUN.set(None)
    try:
        yield
    finally:
        RUN.reset(token)


def run(main: Main) -> int:
    """Run ``main(stop)`` until it returns; the first SIGTERM or SIGINT sets ``stop``, and a second exits with 130.

    Return the exit code: 0 for a clean end, 2 for settings that cannot be used, 1 for any other failure.
    """
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_with_signals(main))
    except SettingsError as error:
        print(error, file=sys.stderr)  # noqa: T201 - logging is not set up when settings are wrong
        return EXIT_SETTINGS
    except SurelaneError as error:
        get_logger("surelane_service.lifecycle").error("service failed", reason=str(error))
        return EXIT_FAILED
    except Exception:  # noqa: BLE001 - a crash is a line of JSON too, without data in it
        get_logger("surelane_service.lifecycle").error("service crashed", exc_info=True)
        return EXIT_FAILED
    return EXIT_OK


async def _with_signals(main: Main) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_report)

    def on_signal(name: str) -> None:
        if stop.is_set():
            os._exit(EXIT_FORCED)
        get_logger("surelane_service.lifecycle").info("stopping", signal=name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    await main(stop)


def _report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an uncaught exception, such as one of a task that a handler left behind; asyncio would log its message."""
    get_logger("surelane_service.lifecycle").error(
        "exception in the event loop",
        what=context["message"].partition("(")[0],
        error=type(context.get("exception")).__name__,
    )


async def sleep_unless(stop: asyncio.Event, pause: timedelta | float | None) -> bool:
    """Wait for ``pause`` (a number is in seconds) or until ``stop`` is set; return whether it is set."""
    try:
        async with asyncio.timeout(pause.total_seconds() if isinstance(pause, timedelta) else pause):
            await stop.wait()
    except TimeoutError:
        return False
    return True
