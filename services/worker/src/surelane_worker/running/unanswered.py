"""Cancel an event whose thread in Slack is gone: the message that it answers was deleted, so no one waits for it.

It does not fail: no failure hook should speak to the channel, and no alert tell that a person deleted a question.
"""

import asyncio

from surelane_worker.handling.attempt import Attempt, Stoppable
from surelane_worker.slack.client import ThreadGoneError

PAUSES = (0.05, 0.2, 1.0, 3.0)
"""Seconds between two tries while another transaction has locked the event."""
WHY = "the message that it answers was deleted"


async def was_cancelled(error: BaseException, attempt: Attempt, work: Stoppable) -> bool:
    """Cancel the event whose thread is gone, if a handler's error says so. Return whether its attempt is over."""
    gone = _thread_gone(error)
    if gone is None or work.stopped is not None or attempt.undoing:
        return False
    fence, cancel = attempt.fence(attempt.events[0]), attempt.services.engine.cancel
    try:
        for pause in PAUSES:
            answer = await fence.patiently(cancel, gone.identity, by="surelane", reason=WHY)
            if answer != "busy":
                attempt.log.info("the event is cancelled: the message that it answers was deleted")
                return answer is not None
            await asyncio.sleep(pause)
    except asyncio.CancelledError:  # the request to cancel may stop this attempt
        if work.stopped is None:
            raise
        uncancel()
        return True
    return False


def uncancel() -> None:
    """Revoke the cancellation that stopped a handler: its task must still release the other claims."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _thread_gone(error: BaseException) -> ThreadGoneError | None:
    """Return the error, or the one that caused it, if it says that an event's thread is gone."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_thread_gone, error.exceptions)), None)
    found = error if isinstance(error, ThreadGoneError) else error.__cause__
    return found if isinstance(found, ThreadGoneError) else None
