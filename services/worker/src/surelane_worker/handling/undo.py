"""Undo what an event did that failed for good, expired or was cancelled.

``agent.undo_first`` hands such an event out once more. Its handler then gets its stored steps, and stops where it would
do something new. The undos that it registered until there run in reverse order, each as a step.

A failed last attempt does not run its undos itself: there is one way for all ends, with a lease and attempts of its
own, which no timeout, cancel or death of the attempt cuts short.
"""

import asyncio
from collections.abc import Awaitable, Callable

from surelane_worker.handling.attempt import Attempt
from surelane_worker.handling.children import end_children
from surelane_worker.handling.outcomes import Undone
from surelane_worker.handling.past import UNDO
from surelane_worker.handling.shapes import StepMismatchError
from surelane_worker.handling.steps import NO_FAILURES, StepError


class UndoError(Exception):
    """The handler no longer gets to an undo that it registered."""


async def undo(
    attempt: Attempt, replay: Callable[[], Awaitable[object]], most: int, is_last: Callable[[], bool]
) -> Undone:
    """Await ``replay``, the handler that stops, and run its undos, each of them although a later one failed.

    Its children end first. A handler without undos is here for them alone, and is not called.

    A failed one is tried again in further attempts, ``most`` times in all. ``is_last``: whether no attempt follows.
    """
    steps = attempt.steps
    has_undos = any(key.name.startswith(UNDO) for key in await steps.past.all())
    stopped = await _stopped(attempt, replay()) if has_undos else None
    lost = await steps.begin_undos()
    await end_children(steps)
    failed: Exception | None = None
    for key, call in reversed(steps.undos):
        stored = await steps.stored(key, "step")
        if stored is not None and stored.ended:
            continue
        tries = 1 + (0 if stored is None else stored.tried.get("tries", 0)) // (call.retries + 1)
        try:
            await steps.run_undo(key, call, final=tries >= most)
        except (StepError, StepMismatchError) as error:
            failed = failed or error
    if failed is None and lost:
        failed = (
            stopped if isinstance(stopped, Exception) else UndoError(f"the handler does not get to {lost}")
        )
    if failed is not None and not is_last() and await steps.left_undos():
        raise failed
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
