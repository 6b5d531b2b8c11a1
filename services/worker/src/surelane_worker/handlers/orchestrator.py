"""``orchestrator-plan`` → ``orchestrator-subtask`` … → ``orchestrator-synthesize``: one goal, worked on in parts.

A plan's payload is that of ``POST /v1/orchestrate``: ``goal``, optionally ``subtasks`` and ``fails_with_children``.
A team registers its own functions for any of the three kinds; a plan of its own ends with :func:`split`.
"""

from collections.abc import Sequence
from typing import Any

from surelane.events import Event
from surelane.jobs import Child, Continuation, Job
from surelane_worker.context import Context
from surelane_worker.handlers.agent_turn import tell
from surelane_worker.handlers.registry import Handlers
from surelane_worker.outcomes import Discard, FanOut

handlers = Handlers()

PLACE = ("channel", "thread_ts", "user")
"""What of a plan's payload its synthesis is given, to answer where it was asked."""


@handlers.on("orchestrator-plan", timeout="5m")
async def plan(event: Event, ctx: Context) -> FanOut | Discard:  # noqa: ARG001 - a handler takes both
    """Splits a goal into the subtasks that were given with it, or else into its lines."""
    goal, subtasks = event.payload.get("goal"), event.payload.get("subtasks")
    if not isinstance(goal, str) or not goal.strip():
        return Discard("a plan needs a goal")
    if subtasks is None:
        subtasks = [line.strip(" -*\t") for line in goal.splitlines() if line.strip(" -*\t")]
    if not isinstance(subtasks, list):
        return Discard("subtasks must be a list")
    return split(event, subtasks)


@handlers.on("orchestrator-subtask", timeout="5m")
async def subtask(event: Event, ctx: Context) -> Any:  # noqa: ANN401, ARG001 - whatever the subtask is
    """Returns the subtask itself: where nobody has written an agent, there is nothing else to be found."""
    return event.payload["subtask"]


@handlers.on("orchestrator-synthesize", timeout="5m")
async def synthesize(event: Event, ctx: Context) -> dict[str, Any]:
    """Gathers what the subtasks came to, and says so in Slack where the plan was asked for there."""
    children = await ctx.queue.children(event.id)
    found = gathered(children)
    ended = f"{len(found['completed'])} of {len(children)} subtasks completed"
    await tell(event, ctx, f"{event.payload.get('goal')}: {ended}.")
    return {"goal": event.payload.get("goal"), **found}


def split(event: Event, subtasks: Sequence[Any]) -> FanOut:
    """The outcome of a plan: its subtasks (any JSON each), and the synthesis that runs once all have ended."""
    goal = event.payload.get("goal")
    return FanOut(
        [
            Job("orchestrator-subtask", {"goal": goal, "subtask": subtask, "number": number})
            for number, subtask in enumerate(subtasks)
        ],
        Continuation(
            "orchestrator-synthesize",
            {"goal": goal, **{name: event.payload[name] for name in PLACE if name in event.payload}},
            fails_with_children=bool(event.payload.get("fails_with_children", False)),
        ),
        result={"subtasks": len(subtasks)},
    )


def gathered(children: Sequence[Child]) -> dict[str, list[Any]]:
    """The results of the children that completed, in order, and why the others did not."""
    return {
        "completed": [child.result for child in children if child.status == "completed"],
        "failed": [
            {"payload": child.payload, "status": child.status, "error": child.error or child.reason}
            for child in children
            if child.status != "completed"
        ],
    }
