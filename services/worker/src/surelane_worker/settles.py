"""The sorts of settles, and the call that sends each."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from opentelemetry.context import attach, detach, get_current
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

from surelane.events import Completion, Failure, Settled
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from surelane_worker.claims import Claim


@dataclass(frozen=True, slots=True)
class Snoozed:
    """An event to be put off."""

    pause: timedelta


@dataclass(frozen=True, slots=True)
class Released:
    """An event to be given back, its attempt not counted."""


@dataclass(frozen=True, slots=True)
class Continued:
    """An event that is finished and goes on in jobs of its own. ``result`` is JSON text."""

    id: int
    claim: int
    children: tuple[Job, ...]
    continuation: Continuation
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Awaiting:
    """An event that waits for its answer until a deadline."""

    deadline: datetime


Settle = Completion | Failure | Snoozed | Released | Continued | Awaiting
Settlement = tuple[Claim, Settle]


async def send(queue: Queue, batch: Sequence[Settlement], max_attempts: int) -> list[Settled]:
    """Sends settles of one sort: the frequent sorts in one round trip, the rare ones one by one."""
    match batch[0][1]:
        case Completion():
            return await queue.complete_events(
                [settle for _, settle in batch if isinstance(settle, Completion)]
            )
        case Failure():
            return await queue.fail_events(
                [settle for _, settle in batch if isinstance(settle, Failure)], max_attempts
            )
        case Released():
            return await queue.release_events([claim.fence for claim, _ in batch])
    return [await _send_one(queue, claim, settle) for claim, settle in batch]


async def _send_one(queue: Queue, claim: Claim, settle: Settle) -> Settled:
    match settle:
        case Snoozed(pause):
            return await queue.snooze_event(*claim.fence, pause)
        case Awaiting(deadline):
            return await queue.await_event(*claim.fence, deadline)
        case Continued():
            with _within(claim.span):
                return await queue.continue_event(
                    *claim.fence, settle.children, settle.continuation, settle.result
                )
        case _:
            raise TypeError(f"{type(settle).__name__} is sent in batches")


@contextmanager
def _within(span: SpanContext | None) -> Iterator[None]:
    """What is enqueued in the block belongs to the span of the attempt that asked for it."""
    current = get_current()
    token = attach(current if span is None else set_span_in_context(NonRecordingSpan(span), current))
    try:
        yield
    finally:
        detach(token)


def without_what_was_refused(settle: Settle, error: Exception) -> Settle | None:
    """What to send instead of a settle that the database refuses; ``None`` where there is nothing."""
    match settle:
        case Completion(identity, claim, result) if result is not None:
            return Completion(identity, claim)  # it is finished, whatever its result is
        case Continued(identity, claim):
            record = {"type": type(error).__name__, "message": str(error)[:2000]}
            return Failure(identity, claim, json.dumps(record), final=True, reason="continuation_refused")
    return None
