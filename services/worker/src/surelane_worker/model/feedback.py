"""The blocks below an agent's last message, by which people say what they think of the answer."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from surelane.errors import SurelaneError
from surelane.events import Event
from surelane.slack import place_of
from surelane_service.feedback import BAD, GOOD
from surelane_worker.handling.asks import Block
from surelane_worker.handling.context import Context, attempt_of

FEEDBACK = "feedback"
"""The question of the blocks' ids. Questions of handlers have names with a number."""
RATE, REASON, QUIET = "surelane.rate", "surelane.reason", "surelane.quiet"
"""The ids of the thumbs, of the modal that asks for a reason, and of the button that ends the reminder."""
RATINGS = {"good": GOOD, "bad": BAD}
ENOUGH = 3
"""How often a person is told of the thumbs; the database's number, too (``agent.remind_feedback``)."""
REMINDER = "Was this helpful? Your rating teaches me."


async def feedback(event: Event, ctx: Context) -> Sequence[dict[str, Any]]:
    """Return the thumbs for an event's answer. Below the first answers to a person is a line about them."""
    block_id = str(Block(event.id, FEEDBACK))
    buttons: dict[str, Any] = {"type": "feedback_buttons", "action_id": RATE}
    for name, value in (("positive", "good"), ("negative", "bad")):
        text = {"type": "plain_text", "text": f"{value.capitalize()} answer"}
        buttons |= {f"{name}_button": {"text": text, "value": value, "accessibility_label": text["text"]}}
    thumbs = {"type": "context_actions", "block_id": block_id, "elements": [buttons]}
    return [thumbs, *([_reminder()] if await _is_new(event, ctx) else [])]


async def _is_new(event: Event, ctx: Context) -> bool:
    place, engine = place_of(event.payload), attempt_of(ctx).services.engine
    with suppress(SurelaneError):  # the answer matters more
        return bool(place.user) and await engine.remind_feedback(place.workspace or "", str(place.user), 1)
    return False


def _reminder() -> dict[str, Any]:
    button = {
        "type": "button",
        "action_id": QUIET,
        "text": {"type": "plain_text", "text": "Don't tell me again"},
    }
    return {"type": "section", "text": {"type": "plain_text", "text": REMINDER}, "accessory": button}
