"""Run tasks at remote agents: ``dispatch-execute`` once per task, then ``dispatch-synthesize`` for all answers.

A remote agent is a program elsewhere, named in ``SURELANE_DISPATCH_URLS``. It gets its task in a signed request. It
answers in its response or, before the deadline, at ``/v1/dispatch/{id}``; see docs/jobs.md.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from surelane.events import Event
from surelane.jobs import Continuation, Job
from surelane_service.durations import parse_duration
from surelane_worker.builtin.messages import tell
from surelane_worker.handling.context import Context
from surelane_worker.handling.outcomes import Await, Complete, Discard, FanOut
from surelane_worker.handling.registry import Handlers
from surelane_worker.remote_agents import Accepted, Answered, RefusedError, RemoteAgents

handlers = Handlers()


@handlers.on("dispatch-execute", timeout="1m")
async def execute(event: Event, ctx: Context) -> Complete | Await | Discard:
    """Send a task (``{"agent": name, "task": …, "within": "10m"}``) to a remote agent and await its answer."""
    agents = RemoteAgents(ctx.settings)
    name = str(event.payload.get("agent"))
    try:
        within = parse_duration(event.payload.get("within", ctx.settings.dispatch_deadline))
    except ValueError as error:
        return Discard(f"within: {error}")
    deadline = datetime.now(UTC) + within
    try:
        answer = await agents.send(name, event.id, event.payload.get("task"), deadline)
    except RefusedError as error:
        return Discard(str(error))
    match answer:
        case Answered(result):
            return Complete(result)
        case Accepted():
            return Await(deadline)


@handlers.on("dispatch-synthesize", timeout="5m")
async def synthesize(event: Event, ctx: Context) -> dict[str, Any]:
    """Gather the agents' answers. Say who answered in Slack if the dispatch was asked for there."""
    children = await ctx.queue.children(event.id)
    answers = {child.payload["agent"]: child.result for child in children if child.status == "completed"}
    missing = {
        child.payload["agent"]: child.error or child.reason or child.status
        for child in children
        if child.status != "completed"
    }
    await tell(event, ctx, f"{len(answers)} of {len(children)} agents answered: {', '.join(answers) or '-'}.")
    return {"answers": answers, "missing": missing}


def dispatch(
    tasks: Mapping[str, Any],
    *,
    within: str | float | None = None,
    then: Continuation | None = None,
) -> FanOut:
    """Return the outcome of a handler whose work continues at remote agents.

    Args:
        tasks: one task per agent, by the agent's name: any JSON.
        within: how long the agents may take, such as ``10m``; ``None`` for the worker's setting.
        then: the job that runs once every agent has answered or failed; ``None`` for ``dispatch-synthesize``.
    """
    limit = {} if within is None else {"within": within}
    return FanOut(
        [Job("dispatch-execute", {"agent": name, "task": task, **limit}) for name, task in tasks.items()],
        then or Continuation("dispatch-synthesize"),
    )
