"""Undo what an event did that failed for good, expired or was cancelled.

``agent.undo_first`` hands such an event out once more. Its handler then gets its stored steps, and stops where it would
do something new. The undos that it registered until there run in reverse order, each as a step.

A failed last attempt does not run its undos itself: there is one way for all ends, with a lease and attempts of its
own, which no timeout, cancel or death of the attempt cuts short.
"""

import asyncio
from collections.abc import Awaitable, Callable

from surelane_worker.handling.attempt import Attempt
from surelane_worker.handling.outcomes import Undone
from surelane_worker.handling.shapes import StepMismatchError
from surelane_worker.handling.steps import NO_FAILURES, StepError


class UndoError(Exception):
    """The handler no longer gets to an undo that it registered."""


async def undo(attempt: Attempt, replay: Awaitable[object], is_last: Callable[[], bool]) -> Undone:
    """Await ``replay``, the handler that stops, and run its undos. A failed one is tried again before earlier ones run.

    If no attempt follows, the other undos run all the same.
    """
    stopped = await _stopped(attempt, replay)
    steps = attempt.steps
    lost = await steps.begin_undos()
    if lost and not is_last():
        raise stopped if isinstance(stopped, Exception) else UndoError(f"the handler does not get to {lost}")
    for key, call in reversed(steps.undos):
        stored = await steps.stored(key, "step")
        if stored is not None and stored.ended:
            continue
        try:
            await call()
        except (StepError, StepMismatchError):
            if not is_last():
                raise
            await steps.finalize()
    return Undone()


async def _stopped(attempt: Attempt, replay: Awaitable[object]) -> BaseException | None:
    """Await a handler that stops where it would do something new. Return what it raised."""
    try:
        await replay
    except asyncio.CancelledError as error:
        if attempt.work.stopped is not None:
            raise
        return error
    except BaseException as error:
        if isinstance(error, NO_FAILURES) and not isinstance(error, StepMismatchError):
            raise
        return error
    return None
