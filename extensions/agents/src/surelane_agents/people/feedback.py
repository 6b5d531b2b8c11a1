"""Let people rate an agent's answers: by thumbs below the last message, and a reason behind a bad rating.

Anybody who sees an answer may rate it. Each person has one rating of a turn; the later click counts.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from surelane.errors import SurelaneError
from surelane.slack import own_id, place_of
from surelane_agents.agent_settings import agent_settings
from surelane_agents.calls import NAME, AgentCalls, agent_calls, patiently
from surelane_worker import Context, Event, Handlers
from surelane_worker.handling import asks
from surelane_worker.handling.context import attempt_of
from surelane_worker.handling.handler import handler_of
from surelane_worker.handling.registry import registered_in
from surelane_worker.handling.routes import ANSWERS

handlers = Handlers()
Block = dict[str, Any]
FEEDBACK = "feedback"
"""The question of the blocks' ids. Questions of handlers end in a number."""
OWN = RATE, REASON, QUIET = "surelane.rate", "surelane.reason", "surelane.quiet"
"""The ids of the thumbs, of the modal for a reason, and of the button that ends the line about the thumbs."""
RATINGS = {"good": 1, "bad": -1}
ENOUGH = 3
"""How often a person is told of the thumbs; the database's number, too (``agent.remind_feedback``)."""
LINE = "Was this helpful? Your rating teaches me."
WHY = "What was wrong with the answer? The people who run me read this."


async def below(own: Sequence[Block] | None, event: Event, ctx: Context) -> Sequence[Block]:
    """Return an agent's ``own`` blocks, or the thumbs. Below the first answers to a person is a line about them."""
    if own is not None or not agent_settings().model_feedback:
        return own or ()
    good, bad = ({"text": asks.plain(f"{value.capitalize()} answer"), "value": value} for value in RATINGS)
    buttons = {"type": "feedback_buttons", "action_id": RATE, "positive_button": good, "negative_button": bad}
    name, place, is_new = str(asks.Block(event.id, FEEDBACK)), place_of(event.payload), False
    with suppress(SurelaneError):  # the answer matters more
        if place.user and place.channel:
            is_new = await agent_calls(ctx).remind_feedback(place.workspace or "", place.user, 1)
    quiet = {"type": "button", "action_id": QUIET, "text": asks.plain("Don't tell me again")}
    line = {"type": "section", "block_id": f"{name}:quiet", "text": asks.plain(LINE), "accessory": quiet}
    thumbs = {"type": "context_actions", "block_id": name, "elements": [buttons]}
    return [thumbs, line] if is_new else [thumbs]


async def take(event: Event, ctx: Context) -> Block:
    """Store a rating or a reason, and ask for the reason of a bad rating. Or be quiet about the thumbs."""
    (block, _, value), asked_in = asks.read_click(event.payload), asks.asked_in(event.payload)
    place, fence, channel = place_of(event.payload), attempt_of(ctx).steps.fence, asked_in.get("channel")
    if block is None or place.user is None:
        return {"unhandled": "not a question"}
    name, workspace, user = own_id(event.payload), place.workspace or "", place.user
    reason, rating = (value.strip() or None, -1) if name == REASON else (None, RATINGS.get(value))
    if name == QUIET:
        await patiently(ctx, AgentCalls.remind_feedback, workspace, user, ENOUGH)
        await asks.tell(ctx.slack, event, asked_in, user, "I will not say this again.")
        return {"quiet": True}
    if block.question != FEEDBACK or rating is None or not isinstance(channel, str):
        return {"unhandled": "not a rating"}
    steps = await fence.patiently(fence.engine.read_steps, block.identity)
    said = [step.result for step in steps if step.name == "model" and step.done and step.result]
    (response,) = json.loads(said[-1]) if said else ({},)
    model = str((response.get("metadata") or {}).get(NAME) or "")
    who, click = (workspace, user, channel), event.id
    known = await patiently(ctx, AgentCalls.rate_turn, block.identity, who, rating, reason, model, click)
    if known and name == RATE and rating == -1:
        with asks.ignoring_final_errors():  # the rating counts, also where the three seconds have passed
            await ctx.slack.open_view(event, asks.modal({**asked_in, "text": WHY}, block, REASON))
    elif place.channel:
        await asks.tell(ctx.slack, event, asked_in, user, "Thank you." if known else "This answer is gone.")
    return {"rated": value if name == RATE else "reason"} if known else {"unhandled": "no such turn"}


def _is_rating(event: Event) -> bool:
    return own_id(event.payload) in OWN


# Before the worker's own handler of clicks.
registered_in(handlers).add(handler_of(take, (ANSWERS,), timeout="1m"), _is_rating)
