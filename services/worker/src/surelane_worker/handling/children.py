"""Run children of a handler: jobs whose results the handler awaits.

``agent.run_child`` starts a child once, with a wait of the parent's event. The child's end sends it a signal of the
wait's name, such as ``child part:1``, which no program can send.
"""

from collections.abc import Callable
from typing import Any

from surelane.jobs import Job
from surelane_worker.handling.flow import Key
from surelane_worker.handling.shapes import StepMismatchError, fingerprint
from surelane_worker.handling.steps import LONGEST_NAME, Steps

LONGEST_NUMBER = 10
"""Characters of a colon and a child's number."""


class ChildError(Exception):
    """A child has not completed. A later attempt raises it again at the same place.

    Attributes:
        kind: the child's kind.
        key: its natural key.
        outcome: ``failed``, ``expired`` or ``cancelled``.
        reason: why, as history has it.
        message: the text of its last error; without one, the reason.
    """

    def __init__(self, kind: str, key: str | None, outcome: str, reason: str | None, message: str) -> None:
        super().__init__(f"child {key or kind} {outcome}: {message}")
        self.kind = kind
        self.key = key
        self.outcome = outcome
        self.reason = reason
        self.message = message


async def run_child(attempt: Callable[[], Steps], child: Job, key: object, *, blocking: bool) -> Any:
    """Start a child once, and return its result; see :meth:`Context.run`."""
    steps = attempt()
    named = steps.key(f"child {child.kind}" if key is None else f"child {child.kind} [{key}]")
    if len(named.name) > LONGEST_NAME - LONGEST_NUMBER:
        raise StepMismatchError(f"the kind and key= of a child are too long: {named.name!r:.80}")
    wait = Key(f"{named.name}:{named.nth}", 1)
    if blocking and child.group_key is not None and child.group_key == steps.fence.event.group_key:
        raise StepMismatchError("a child in the event's own group cannot run while it blocks that group")
    hashed, start = fingerprint((child.payload,), {}), steps.fence.engine.run_child

    async def take() -> tuple[str, str | None]:
        return await steps.fence.send(start, wait.name, hashed, child, steps.past.in_order(wait))

    signal = await steps.take(wait, take, hashed=hashed, blocking=blocking)
    if signal is None:
        raise AssertionError("a child has no timeout")
    end = await steps.fence.engine.child_end(signal.value)
    if end["outcome"] == "completed":
        return end["result"]
    message = (end["error"] or {}).get("message") or end["reason"] or end["outcome"]
    raise ChildError(end["kind"], end["key"], end["outcome"], end["reason"], message)
