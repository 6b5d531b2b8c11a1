"""Take what people think of an agent's answers: a rating by a click, and a reason by a modal behind a bad one.

Every worker with a bot token handles these clicks beside its own (``surelane_worker.model.feedback`` has the blocks).
Anybody who sees the answer may rate it. Each person has one rating of a turn; the later click counts.
"""

import json
from dataclasses import asdict
from typing import Any

from surelane.events import Event
from surelane.slack import own_id, place_of
from surelane_service.feedback import BAD, Rated
from surelane_worker.builtin.questions import metadata, read
from surelane_worker.handling import asks
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.handling.handler import handler_of
from surelane_worker.handling.registry import Handlers, registered_in
from surelane_worker.handling.routes import ANSWERS, Sort
from surelane_worker.model.feedback import ENOUGH, FEEDBACK, QUIET, RATE, RATINGS, REASON
from surelane_worker.model.setup import NAME

handlers = Handlers()
LONGEST_REASON = 3000
THANKS, NO_MORE = "Thank you.", "I will not say this again."
GONE = "I no longer know this answer."
WHY = "What was wrong with the answer? The people who run me read this."


async def rate(event: Event, ctx: Context) -> object:
    """Store a rating or a reason, and ask for the reason of a bad rating."""
    (block, name, value), place = read(event.payload), place_of(event.payload)
    channel = place.channel or metadata(event.payload).get("channel")
    rating = BAD if name == asks.WRITTEN else RATINGS.get(value)
    if (
        block is None
        or block.question != FEEDBACK
        or not (rating and place.user and isinstance(channel, str))
    ):
        return {"unhandled": "not a rating"}
    reason = value.strip()[:LONGEST_REASON] or None if name == asks.WRITTEN else None
    fence, who = attempt_of(ctx).steps.fence, (place.workspace or "", place.user, channel)
    model = _model(await fence.patiently(fence.engine.read_steps, block.identity))
    rated = Rated(block.identity, event.id, *who, rating, reason, model)
    stored = await fence.patiently(fence.engine.rate_turn, rated)
    asked_in = asdict(place) | {"channel": channel, "text": WHY}
    if stored and rating == BAD and name == RATE:
        with asks.ignoring_final_errors():  # the rating counts, also where the three seconds have passed
            await ctx.slack.open_view(event, asks.modal(asked_in, block, REASON, "Feedback"))
    elif place.channel:
        await asks.tell(ctx.slack, asked_in, place.user, THANKS if stored else GONE)
    return {"rated": value if name == RATE else "reason"} if stored else {"unhandled": "no such turn"}


async def be_quiet(event: Event, ctx: Context) -> object:
    """Tell a person no more that answers can be rated."""
    place, fence = place_of(event.payload), attempt_of(ctx).steps.fence
    if not (place.user and place.channel):
        return {"unhandled": "nobody clicked"}
    await fence.patiently(fence.engine.remind_feedback, place.workspace or "", place.user, ENOUGH)
    await asks.tell(ctx.slack, asdict(place), place.user, NO_MORE)
    return {"reminds": False}


def _model(steps: Any) -> str:  # noqa: ANN401
    """Return the model of a turn's last response; empty: it has none."""
    found = ""
    for step in steps:
        if step.name == "model" and step.done and step.result:
            (response,) = json.loads(step.result)
            found = str((response.get("metadata") or {}).get(NAME) or "")
    return found


_OWN = Sort((ANSWERS,), lambda event: [own_id(event.payload)])
for _function, _ids in ((rate, (RATE, REASON)), (be_quiet, (QUIET,))):
    registered_in(handlers).add(handler_of(_function, _OWN.kinds, timeout="1m"), _OWN.takes(_ids))
