"""Work on one goal in parts: the kinds ``orchestrator-plan``, ``orchestrator-subtask`` and ``orchestrator-synthesize``.

A plan's payload is that of ``POST /v1/orchestrate``: ``goal``, optionally ``subtasks`` and ``fails_with_children``.
A team may register its own function for each of the three kinds; its plan returns :func:`split`.
"""

import json
from collections.abc import Sequence
from typing import Any

from surelane.events import Event
from surelane.jobs import Child, Continuation, Job
from surelane_worker.builtin.messages import tell
from surelane_worker.handling.context import Context
from surelane_worker.handling.outcomes import Discard, FanOut
from surelane_worker.handling.registry import Handlers

handlers = Handlers()

PLACE = ("channel", "thread_ts", "user")
"""Fields that a synthesis takes over from its plan, to answer where the plan was asked for."""

MOST_SUBTASKS = 10_000
LARGEST_PLAN = 8_000_000
"""Most characters of all subtasks together. Each carries the goal, so a long goal of many lines multiplies."""
LONGEST_TITLE = 200
"""Most characters of the goal that are repeated in Slack."""


@handlers.on("orchestrator-plan", timeout="5m")
async def plan(event: Event, ctx: Context) -> FanOut | Discard:  # noqa: ARG001 - a handler takes both
    """Split a goal into the subtasks that came with it, or else into its lines."""
    goal, subtasks = event.payload.get("goal"), event.payload.get("subtasks")
    if not isinstance(goal, str) or not goal.strip():
        return Discard("a plan needs a goal")
    if subtasks is None:
        subtasks = [line.strip(" -*\t") for line in goal.splitlines() if line.strip(" -*\t")]
    if not isinstance(subtasks, list):
        return Discard("subtasks must be a list")
    return split(event, subtasks)


@handlers.on("orchestrator-subtask", timeout="5m")
async def subtask(event: Event, ctx: Context) -> Any:  # noqa: ANN401, ARG001 - a subtask is any JSON
    """Return the subtask itself. A team's own handler does the work here."""
    return event.payload["subtask"]


@handlers.on("orchestrator-synthesize", timeout="5m")
async def synthesize(event: Event, ctx: Context) -> dict[str, Any]:
    """Gather the subtasks' results. Say how many completed in Slack if the plan was asked for there."""
    children = await ctx.queue.children(event.id)
    found = gathered(children)
    ended = f"{len(found['completed'])} of {len(children)} subtasks completed"
    goal = event.payload.get("goal")
    await tell(event, ctx, f"{str(goal)[:LONGEST_TITLE]}: {ended}.")
    return {"goal": goal, **found}


def split(event: Event, subtasks: Sequence[Any]) -> FanOut | Discard:
    """Return the outcome of a plan: its subtasks (any JSON each), and the synthesis that runs once all have ended.

    Discard a plan of more than 10,000 subtasks, or of more than 8,000,000 characters with the goal in each.
    """
    goal = event.payload.get("goal")
    if len(subtasks) > MOST_SUBTASKS:
        return Discard(f"the plan has {len(subtasks):,} subtasks; at most {MOST_SUBTASKS:,} can be run")
    size = len(json.dumps(subtasks)) + len(subtasks) * len(json.dumps(goal))
    if size > LARGEST_PLAN:
        return Discard(
            f"the plan's subtasks, with the goal in each, have {size:,} characters; at most {LARGEST_PLAN:,}"
        )
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
    """Return the results of the completed children, in order, and why the others did not complete.

    The payloads of the failed children are returned without the goal, which each of them repeats.
    """
    return {
        "completed": [child.result for child in children if child.status == "completed"],
        "failed": [
            {
                "payload": {name: value for name, value in child.payload.items() if name != "goal"},
                "status": child.status,
                "error": child.error or child.reason,
            }
            for child in children
            if child.status != "completed"
        ],
    }
