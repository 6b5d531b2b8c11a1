"""Take people's answers to ``ctx.ask``, and their clicks on the Stop button of ``ctx.stoppable``.

Every worker with a bot token handles these clicks beside its own kinds. Any worker may get an answer, not only the one
that asked.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from surelane.events import Event
from surelane_worker.handling.asks import (
    CHOOSE,
    STOP,
    WRITE,
    WRITTEN,
    Block,
    asked_as,
    chosen,
    close,
    may,
    modal,
    tell,
)
from surelane_worker.handling.context import Context
from surelane_worker.handling.outcomes import Snooze
from surelane_worker.handling.registry import Handlers
from surelane_worker.handling.routes import ANSWERS
from surelane_worker.slack.place import place_of

handlers = Handlers()

OVER = "This question is over."


SOON = Snooze("2s")
"""The question is not stored yet, or the event is locked. This may last, so it costs no attempts."""


@handlers.on(ANSWERS, timeout="1m")
async def answer(event: Event, ctx: Context) -> object:
    """Give an answer to the event that waits for it, or stop the event."""
    user = str((event.payload.get("user") or {}).get("id", ""))
    block, action, value = _read(event.payload)
    if block is None or not user:
        return {"unhandled": "not a question"}
    posted, place = await _posted(ctx, block), place_of(event)
    if posted is None:
        if await ctx.engine.is_live(block.identity):
            return SOON
        return (
            await _tell(ctx, asdict(place), user, OVER) if place.channel else {"unhandled": "no such event"}
        )
    if place.channel not in (None, posted["channel"]):
        return {"unhandled": "not where it was asked"}
    if not may(posted, user):
        named = ", ".join(f"<@{each}>" for each in posted["by"])
        return await _tell(ctx, posted, user, f"Only {named} may answer this.")
    if action == STOP:
        return await _stop(ctx, block, posted, user)
    if action == WRITE:
        await ctx.slack.open_view(event, modal(posted, block))
        return {"opened": block.question}
    choice = value if action == WRITTEN else posted["choices"][int(value)]
    return await _choose(event, ctx, block, posted, {"choice": choice, "user": user, "click": event.key})


async def _choose(
    event: Event, ctx: Context, block: Block, posted: Mapping[str, Any], given: Mapping[str, str]
) -> object:
    answer, first = await ctx.engine.send_signal(
        block.identity, block.question, json.dumps(given), once=not posted["judged"], by=given["user"]
    )
    counts = given if answer == "sent" else None if first is None else json.loads(first)
    if counts is not None and counts["click"] == event.key:
        if not posted["judged"]:
            await close(ctx.slack, posted, chosen(counts["choice"], counts["user"]))
        return {"chosen": given["choice"]}
    if counts is None:
        return await _tell(ctx, posted, given["user"], OVER)
    decided = f"This is decided: {chosen(counts['choice'], counts['user'])}"
    return await _tell(ctx, posted, given["user"], decided)


async def _stop(ctx: Context, block: Block, posted: Mapping[str, Any], user: str) -> object:
    answer = await ctx.engine.cancel(block.identity, by=user, reason="stopped in Slack")
    if answer == "busy":
        return SOON
    await close(ctx.slack, posted, "It has ended." if answer is None else f"Stopped by <@{user}>.")
    return {"stopped": answer}


async def _posted(ctx: Context, block: Block) -> Mapping[str, Any] | None:
    """Return the stored question; ``None`` if it is not stored, or not yet."""
    name = asked_as(block.question)
    steps = await ctx.engine.read_steps(block.identity)
    for step in steps:
        if step.name == name and step.done and step.result is not None:
            found: Mapping[str, Any] = json.loads(step.result)
            return found
    return None


async def _tell(ctx: Context, posted: Mapping[str, Any], user: str, text: str) -> object:
    await tell(ctx.slack, posted, user, text)
    return {"told": text}


def _read(payload: Mapping[str, Any]) -> tuple[Block | None, str, str]:
    """Return the question, the action's id without its number, and the choice or text of the person."""
    if payload.get("type") == "view_submission":
        view = payload.get("view") or {}
        try:
            block = Block.read(json.loads(view.get("private_metadata") or "{}").get("block"))
            written = str(view["state"]["values"]["answer"]["text"]["value"] or "")
        except (ValueError, KeyError, TypeError, AttributeError):
            return None, "", ""
        return block, WRITTEN, written
    action = (payload.get("actions") or [{}])[0]
    name = str(action.get("action_id", ""))
    name = CHOOSE if name.startswith(CHOOSE) else name
    option = action.get("selected_option") or {}
    value = str(option.get("value", action.get("value", "")))
    if name == CHOOSE and not value.isdigit():
        return None, "", ""
    return Block.read(action.get("block_id")), name, value
