"""Run the kinds of jobs that need no model: triggers, reports, plans in parts, and tasks for remote agents.

Their results are kept in history. A team registers its own function for the kinds that it needs: see docs/jobs.md.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from surelane.events import Event
from surelane.jobs import Child, Continuation, Job
from surelane_service.common.durations import parse_duration
from surelane_worker.builtin.messages import tell
from surelane_worker.handling.context import Context
from surelane_worker.handling.outcomes import Await, Complete, Discard, FanOut
from surelane_worker.handling.registry import Handlers
from surelane_worker.remote_agents import Answered, TaskRefusedError, send

handlers = Handlers()

PLACE = ("channel", "thread_ts", "user")
"""Fields that a synthesis takes over from its plan, to answer where the plan was asked for."""
MOST_SUBTASKS = 10_000
LARGEST_PLAN = 8_000_000
"""Most characters of all subtasks together. Each carries the goal, so a long goal of many lines multiplies."""
LONGEST_TITLE = 200
"""Most characters of the goal that are repeated in Slack."""


@handlers.on("trigger-fire", timeout="1m")
async def fire(event: Event, ctx: Context) -> FanOut | dict[str, Any]:
    """Continue a webhook or schedule that fired as a job of the kind in ``SURELANE_TRIGGER_KINDS``.

    Without a kind for the trigger's name, history keeps the event and no job follows.
    """
    trigger = event.payload.get("trigger")
    name = trigger or event.payload.get("cron")
    kind = ctx.settings.trigger_kinds.get(str(name))
    if kind is None:
        return {"trigger": name, "kind": None}
    sent = event.payload.get("payload", event.payload)
    payload = sent if isinstance(sent, dict) else {"payload": sent}
    # Without children the continuation runs at once. It is stored in the transaction that completes the event.
    then = Continuation(kind, payload, enqueued_by=f"trigger-fire:{event.key}")
    return FanOut([], then, result={"trigger": trigger, "kind": kind})


@handlers.on("analytics-write", timeout="1m")
async def write(event: Event, ctx: Context) -> dict[str, Any]:  # noqa: ARG001 - a handler takes both
    """Keep a tool's report as the event's result: history is the table that analytics reads."""
    return event.payload


@handlers.on("provider-refresh", timeout="1m")
async def refresh(event: Event, ctx: Context) -> dict[str, Any]:  # noqa: ARG001 - a handler takes both
    """Ask Slack, the one provider of every installation, whether the bot's token still works and who the bot is.

    A revoked token ends the event as failed, with Slack's error as the reason.
    """
    found = await ctx.slack.client.auth_test()
    return {"slack": {name: found.get(name) for name in ("team_id", "team", "user_id", "bot_id", "url")}}


@handlers.on("embed-memories", timeout="1m")
async def embed_memories(event: Event, ctx: Context) -> dict[str, Any]:  # noqa: ARG001 - a handler takes both
    """Make no vectors: a model makes them, where ``surelane-agents`` has one in ``SURELANE_MODEL_EMBEDDINGS``."""
    ctx.log.warning("no model makes vectors", advice="install surelane-agents, set SURELANE_MODEL_EMBEDDINGS")
    return {"model": None, "vectors": []}


@handlers.on("orchestrator-plan", timeout="5m")
async def plan(event: Event, ctx: Context) -> FanOut | Discard:  # noqa: ARG001 - a handler takes both
    """Split the goal of ``POST /v1/orchestrate`` into the subtasks that came with it, or else into its lines."""
    goal, subtasks = event.payload.get("goal"), event.payload.get("subtasks")
    if not isinstance(goal, str) or not goal.strip():
        return Discard("a plan needs a goal")
    if subtasks is None:
        subtasks = [line.strip(" -*\t") for line in goal.splitlines() if line.strip(" -*\t")]
    return split(event, subtasks) if isinstance(subtasks, list) else Discard("subtasks must be a list")


@handlers.on("orchestrator-subtask", timeout="5m")
async def subtask(event: Event, ctx: Context) -> Any:  # noqa: ANN401, ARG001 - a subtask is any JSON
    """Return the subtask itself. A team's own handler does the work here."""
    return event.payload["subtask"]


@handlers.on("orchestrator-synthesize", timeout="5m")
async def synthesize_plan(event: Event, ctx: Context) -> dict[str, Any]:
    """Gather the subtasks' results. Say how many completed in Slack if the plan was asked for there."""
    children = await ctx.queue.children(event.id)
    found, goal = gathered(children), event.payload.get("goal")
    ended = f"{len(found['completed'])} of {len(children)} subtasks completed"
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
    jobs = [
        Job("orchestrator-subtask", {"goal": goal, "subtask": subtask, "number": number})
        for number, subtask in enumerate(subtasks)
    ]
    payload = {"goal": goal, **{name: event.payload[name] for name in PLACE if name in event.payload}}
    strict = bool(event.payload.get("fails_with_children", False))
    then = Continuation("orchestrator-synthesize", payload, fails_with_children=strict)
    return FanOut(jobs, then, result={"subtasks": len(subtasks)})


def gathered(children: Sequence[Child]) -> dict[str, list[Any]]:
    """Return the results of the completed children, in order, and why the others did not complete.

    The payloads of the failed children are returned without the goal, which each of them repeats.
    """
    found: dict[str, list[Any]] = {"completed": [], "failed": []}
    for child in children:
        if child.status == "completed":
            found["completed"].append(child.result)
        else:
            payload = {name: value for name, value in child.payload.items() if name != "goal"}
            why = {"status": child.status, "error": child.error or child.reason}
            found["failed"].append({"payload": payload, **why})
    return found


@handlers.on("dispatch-execute", timeout="1m")
async def execute(event: Event, ctx: Context) -> Complete | Await | Discard:
    """Send a task (``{"agent": name, "task": …, "within": "10m"}``) to a remote agent and await its answer.

    A remote agent is a program elsewhere, named in ``SURELANE_DISPATCH_URLS``. It gets its task in a signed request. It
    answers in its response or, before the deadline, at ``/v1/dispatch/{id}``.
    """
    try:
        within = parse_duration(event.payload.get("within", ctx.settings.dispatch_deadline))
    except ValueError as error:
        return Discard(f"within: {error}")
    name, deadline = str(event.payload.get("agent")), datetime.now(UTC) + within
    try:
        answer = await send(ctx.settings, name, event.id, event.payload.get("task"), deadline)
    except TaskRefusedError as error:
        return Discard(str(error))
    return Complete(answer.result) if isinstance(answer, Answered) else Await(deadline)


@handlers.on("dispatch-synthesize", timeout="5m")
async def synthesize_answers(event: Event, ctx: Context) -> dict[str, Any]:
    """Gather the agents' answers. Say who answered in Slack if the dispatch was asked for there."""
    answers, missing = {}, {}
    for child in await ctx.queue.children(event.id):
        if child.status == "completed":
            answers[child.payload["agent"]] = child.result
        else:
            missing[child.payload["agent"]] = child.error or child.reason or child.status
    count = len(answers) + len(missing)
    await tell(event, ctx, f"{len(answers)} of {count} agents answered: {', '.join(answers) or '-'}.")
    return {"answers": answers, "missing": missing}


def dispatch(
    tasks: Mapping[str, Any], *, within: str | float | None = None, then: Continuation | None = None
) -> FanOut:
    """Return the outcome of a handler whose work continues at remote agents.

    Args:
        tasks: one task per agent, by the agent's name: any JSON.
        within: how long the agents may take, such as ``10m``; ``None`` for the worker's setting.
        then: the job that runs once every agent has answered or failed; ``None`` for ``dispatch-synthesize``.
    """
    limit = {} if within is None else {"within": within}
    jobs = [Job("dispatch-execute", {"agent": name, "task": task, **limit}) for name, task in tasks.items()]
    return FanOut(jobs, then or Continuation("dispatch-synthesize"))
