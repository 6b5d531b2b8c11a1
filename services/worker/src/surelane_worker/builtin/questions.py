"""Take people's answers, feedback and clicks on Stop, and close what ended events left open in Slack.

Every worker with a bot token handles these kinds beside its own. The worker that asked need not get the answer.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from surelane.events import Event
from surelane.slack import place_of
from surelane_worker.handling import asks
from surelane_worker.handling.asks import Block
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.handling.outcomes import Snooze
from surelane_worker.handling.registry import Handlers
from surelane_worker.handling.routes import ANSWERS, DELETED, EDITED
from surelane_worker.slack.notes import SentReplies, Thread
from surelane_worker.slack.stream import close_stream

handlers = Handlers()

OVER = "This question is over."
SOON = Snooze("2s")
"""The event is locked. This may last, so it costs no attempts."""
PATIENCE = 3600.0
"""Seconds for which a click waits for its question. A handler that was changed may never ask it again."""


@handlers.on(ANSWERS, timeout="1m")
async def answer(event: Event, ctx: Context) -> object:
    """Give an answer to the event that waits for it, or stop the event."""
    (block, action, _), place = asks.read_click(event.payload), place_of(event.payload)
    asked_in = asks.asked_in(event.payload)
    if block is None or place.user is None:
        return {"unhandled": "not a question"}
    user, posted = place.user, await _posted(ctx, block)
    if posted is None:
        age = (datetime.now(UTC) - event.event_ts).total_seconds()
        if age < PATIENCE and await attempt_of(ctx).services.engine.is_live(block.identity):
            return Snooze(timedelta(seconds=max(2, age / 10)))
        if "channel" not in asked_in:
            return {"unhandled": "no such event"}
        return await _tell(ctx, asked_in, user, OVER)
    if place.channel not in (None, posted["channel"]):
        return {"unhandled": "not where it was asked"}
    if not asks.may(posted, user):
        named = ", ".join(f"<@{each}>" for each in posted["by"])
        return await _tell(ctx, posted, user, f"Only {named} may answer this.")
    if action == asks.STOP:
        return await _stop(ctx, block, posted, user)
    return await _take(event, ctx, block, posted, user)


async def _take(event: Event, ctx: Context, block: Block, posted: Mapping[str, Any], user: str) -> object:
    """Open the modal for a text, or count the answer."""
    _, action, value = asks.read_click(event.payload)
    beside = asks.choice_in(event.payload)
    given = {"choice": beside or value, "user": user, "click": event.key, "text": value if beside else ""}
    if action == asks.CHOOSE:
        given["choice"] = posted["choices"][int(value)]
    initial = posted.get("written", {}).get(given["choice"])
    if action == asks.WRITE or (action == asks.CHOOSE and initial is not None):
        choice = given["choice"] if action == asks.CHOOSE else ""
        await ctx.slack.open_view(event, asks.modal(posted, block, choice=choice, initial=initial or ""))
        return {"opened": block.question}
    return await _choose(event, ctx, block, posted, given)


async def _choose(
    event: Event, ctx: Context, block: Block, posted: Mapping[str, Any], given: Mapping[str, str]
) -> object:
    answer, first = await attempt_of(ctx).services.engine.send_signal(
        block.identity, block.question, json.dumps(given), once=not posted["judged"], by=given["user"]
    )
    counts = given if answer == "sent" else None if first is None else json.loads(first)
    if counts is not None and counts["click"] == event.key:
        if not posted["judged"]:
            await asks.close(ctx.slack, posted, _chosen(counts))
        return {"chosen": given["choice"]}
    if counts is None:
        return await _tell(ctx, posted, given["user"], OVER)
    return await _tell(ctx, posted, given["user"], f"This is decided: {_chosen(counts)}")


def _chosen(given: Mapping[str, str]) -> str:
    return asks.chosen(given["choice"], given["user"], given.get("text", ""))


async def _stop(ctx: Context, block: Block, posted: Mapping[str, Any], user: str) -> object:
    answer = await attempt_of(ctx).services.engine.cancel(block.identity, by=user, reason="stopped in Slack")
    if answer == "busy":
        return SOON
    await asks.close(ctx.slack, posted, asks.ENDED if answer is None else f"Stopped by <@{user}>.")
    return {"stopped": answer}


async def _posted(ctx: Context, block: Block) -> Mapping[str, Any] | None:
    """Return the stored question; ``None`` if it is not stored, or not yet."""
    name = asks.asked_as(block.question)
    steps = await attempt_of(ctx).services.engine.read_steps(block.identity)
    stored = (json.loads(step.result) for step in steps if step.name == name and step.done and step.result)
    return next(stored, None)


async def _tell(ctx: Context, posted: Mapping[str, Any], user: str, text: str) -> object:
    await asks.tell(ctx.slack, attempt_of(ctx).events[0], posted, user, text)
    return {"told": text}


@handlers.on(*EDITED.kinds, *DELETED.kinds, timeout="1m")
async def leave_edit(event: Event, ctx: Context) -> object:  # noqa: ARG001 - a handler takes both
    """Complete the edits of messages that nothing else handles."""
    return {"unhandled": "no turn"}


@handlers.on("surelane.close", timeout="1m")
async def close_message(event: Event, ctx: Context) -> dict[str, str | None]:
    """Close a message that an ended event left open; the database stores the job (``agent.event_hist_close``).

    The payload has a stored question, or is the note of a stream's beginning, which may lack the message's ``ts``, or
    of an agent session.
    """
    if question := event.payload.get("value"):
        await asks.close(ctx.slack, question, asks.ENDED)
        return {"closed": question["ts"]}
    channel: str = event.payload["channel"]
    if event.payload.get("session"):
        where = {"channel_id": channel, "thread_ts": event.payload["thread_ts"]}
        with asks.ignoring_final_errors():
            await ctx.slack.client.agents_sessions_setStatus(**where, status="closed")
        return {"session": where["thread_ts"]}
    ts: str | None = event.payload["ts"]
    if ts is None:
        # A later event's stream in the thread began after this job was stored.
        stored_at = f"{event.event_ts.timestamp():.6f}"
        thread = Thread(channel, event.payload["thread_ts"], event.payload["since"], stored_at)
        ts = next(iter(await SentReplies(ctx.slack.client, ctx.log).running(thread)), None)
    if ts is not None:
        await close_stream(ctx.slack.client, channel, event.payload["thread_ts"], ts)
    return {"ended": ts}
