"""``trigger-fire``: a webhook or a schedule fired. It goes on as a job of the kind that is set for its name.

The event itself keeps what came, in history, whether or not a kind is set for it.
"""

from typing import Any

from surelane.events import Event
from surelane.jobs import Continuation
from surelane_worker.handling.context import Context
from surelane_worker.handling.outcomes import FanOut
from surelane_worker.handling.registry import Handlers

handlers = Handlers()


@handlers.on("trigger-fire", timeout="1m")
async def fire(event: Event, ctx: Context) -> FanOut | dict[str, Any]:
    """Goes on as a job of the kind that ``SURELANE_TRIGGER_KINDS`` gives for the trigger's name."""
    name = event.payload.get("trigger") or event.payload.get("cron")
    kind = ctx.settings.trigger_kinds.get(str(name))
    if kind is None:
        return {"trigger": name, "kind": None}
    return route(event, kind)


def route(event: Event, kind: str) -> FanOut:
    """Goes on as one job of ``kind`` with what the webhook sent as its payload: once, however often this is tried."""
    sent = event.payload.get("payload", event.payload)
    payload = sent if isinstance(sent, dict) else {"payload": sent}
    # Children none: the continuation runs at once, stored in the transaction that completes the event.
    return FanOut(
        [],
        Continuation(kind, payload, enqueued_by=f"trigger-fire:{event.key}"),
        result={"trigger": event.payload.get("trigger"), "kind": kind},
    )
