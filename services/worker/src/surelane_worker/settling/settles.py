"""The sorts of settles, and the call that sends each.

A settle is plain data, checked and serialised inside the attempt it came from: sending it meets no error but the
database's.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from surelane_service.engine import Completion, Engine, Failure, FanOutText, Settled
from surelane_worker.running.work import Claim
from surelane_worker.settling.records import message_of, storable


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

    jobs: FanOutText
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Awaiting:
    """An event that waits for its answer until a deadline."""

    deadline: datetime


Settle = Completion | Failure | Snoozed | Released | Continued | Awaiting
Settlement = tuple[Claim, Settle]

BATCHED = (Completion, Failure, Released)
"""The frequent sorts: a round trip carries many. The rare ones are sent one by one."""


def alike(batch: Iterable[Settlement]) -> list[list[Settlement]]:
    """What may share a round trip: settles of one frequent sort; each rare one alone."""
    sorts: dict[object, list[Settlement]] = {}
    for one in batch:
        sort = type(one[1])
        sorts.setdefault(sort if sort in BATCHED else one[0], []).append(one)
    return list(sorts.values())


async def send(engine: Engine, batch: Sequence[Settlement], max_attempts: int) -> list[Settled]:
    """Sends settles that may share a round trip."""
    claim, settle = batch[0]
    match settle:
        case Completion():
            return await engine.complete_events(
                [settle for _, settle in batch if isinstance(settle, Completion)]
            )
        case Failure():
            return await engine.fail_events(
                [settle for _, settle in batch if isinstance(settle, Failure)], max_attempts
            )
        case Released():
            return await engine.release_events([claim.fence for claim, _ in batch])
        case Snoozed(pause):
            return [await engine.snooze_event(*claim.fence, pause)]
        case Awaiting(deadline):
            return [await engine.await_event(*claim.fence, deadline)]
        case Continued(jobs, result):
            return [await engine.continue_event_as(*claim.fence, jobs, result)]


def without_what_was_refused(claim: Claim, settle: Settle, error: Exception) -> Settle | None:
    """What to send instead of a settle that the database refuses; ``None`` where there is nothing."""
    match settle:
        case Completion(identity, number, result) if result is not None:
            return Completion(identity, number)  # it is finished, whatever its result is
        case Continued():
            return _refused(claim, error, "continuation_refused")
        case Snoozed() | Awaiting():
            return _refused(claim, error, "outcome_refused")
        case Failure(reason=reason) if reason != "outcome_refused":
            return _refused(claim, error, "outcome_refused")
    return None


def _refused(claim: Claim, error: Exception, reason: str) -> Failure:
    record = storable(json.dumps({"type": type(error).__name__, "message": message_of(error)}))
    return Failure(*claim.fence, record, final=True, reason=reason)
