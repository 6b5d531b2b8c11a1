"""Run children of a handler: jobs whose results the handler awaits.

``agent.run_child`` starts a child once, with a wait of the parent's event. The child's end sends it a signal of the
wait's name, such as ``child part:1``, which no program can send.

A parent that fails, expires or is cancelled first waits for the end of its children, in its undo run.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

from surelane.jobs import Job
from surelane_worker.handling.flow import Key
from surelane_worker.handling.outcomes import Wait
from surelane_worker.handling.shapes import StepMismatchError, fingerprint
from surelane_worker.handling.steps import LONGEST_NAME, Steps
from surelane_worker.slack.notes import ClaimLostError

IfFailed = Literal["cancel", "await", "leave"]
CHILD = "child "
"""Begins the name of the wait for a child."""
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


async def run_child(
    attempt: Callable[[], Steps], child: Job, key: object, *, if_failed: IfFailed, blocking: bool
) -> Any:
    """Start a child once, and return its result; see :meth:`Context.run`."""
    steps = attempt()
    if if_failed not in get_args(IfFailed):
        raise StepMismatchError(f"if_failed of a child is cancel, await or leave, not {if_failed!r:.80}")
    named = steps.key(f"{CHILD}{child.kind}" if key is None else f"{CHILD}{child.kind} [{key}]")
    if len(named.name) > LONGEST_NAME - LONGEST_NUMBER:
        raise StepMismatchError(f"the kind and key= of a child are too long: {named.name!r:.80}")
    wait = Key(f"{named.name}:{named.nth}", 1)
    if blocking and child.group_key is not None and child.group_key == steps.fence.event.group_key:
        raise StepMismatchError("a child in the event's own group cannot run while it blocks that group")
    hashed, start = fingerprint((child.payload,), {}), steps.fence.engine.run_child

    async def take() -> tuple[str, str | None]:
        return await steps.fence.send(start, wait.name, hashed, child, steps.past.in_order(wait), if_failed)

    signal = await steps.take(wait, take, hashed=hashed, blocking=blocking)
    if signal is None:
        raise AssertionError("a child has no timeout")
    end = await steps.fence.engine.child_end(signal.value)
    if end["outcome"] == "completed":
        return end["result"]
    message = (end["error"] or {}).get("message") or end["reason"] or end["outcome"]
    raise ChildError(end["kind"], end["key"], end["outcome"], end["reason"], message)


async def end_children(steps: Steps) -> None:
    """Cancel the children of a handler that is to undo, as each was declared, and wait for their end."""
    engine, event = steps.fence.engine, steps.fence.event
    if not any(key.name.startswith(CHILD) for key in await steps.past.all()):
        return
    with steps.flow.busy():
        while (names := await steps.fence.patiently(engine.end_children, event.id, event.claim)) != []:
            if names is None:
                raise ClaimLostError
            await steps.flow.wait(Wait("wait", names[0], 1, None, blocking=True))
