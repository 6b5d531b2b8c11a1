"""Cancel the turn of a message that a person deletes. If they edit the message, begin anew with its new text.

Every worker with a bot token handles these kinds beside its own. A team's ``handlers.edited`` and ``handlers.deleted``
come first.
"""

from typing import Any

from surelane.events import Event
from surelane.slack import edit_of, edited_message, inner_event, kind_of, said_in, text_in
from surelane_agents.agent_settings import agent_settings
from surelane_agents.calls import agent_calls
from surelane_agents.context.thread import TURN
from surelane_worker.handling.context import Context
from surelane_worker.handling.outcomes import Snooze
from surelane_worker.handling.registry import Handlers
from surelane_worker.handling.routes import DELETED, EDITED

handlers = Handlers()
SOON = Snooze("2s")
"""The event is locked. This may last, so it costs no attempts."""


@handlers.on(*EDITED.kinds, *DELETED.kinds, timeout="1m")
async def replace_turn(event: Event, ctx: Context) -> object:
    """Cancel the turn of the message, if one waits or runs. After an edit, store the message as it is now.

    Slack reports the edit of a mention as an edit, as the mention again, or as both.
    """
    edit = edit_of(event.slack) or "message_changed"
    message = edited_message(event.slack)
    settings = agent_settings()
    if settings.model is None or settings.model_edited == "ignore" or not message:
        return {"unhandled": "no turn"}
    user = text_in(message.get("user")) or "unknown"
    # As if the message had been posted as it is now, at the time of the edit.
    where = {
        name: event.slack[name] for name in ("channel", "channel_type", "event_ts") if name in event.slack
    }
    calls = agent_calls(ctx)
    answers: dict[str, str | None] = {}
    about: dict[str, Any] = {**event.payload, "event": {**message, **where}}
    for live in map(inner_event, await calls.live_messages(about)):
        sort = {name: live[name] for name in ("type", "channel_type") if name in live}
        payload = {**about, "event": about["event"] | sort}
        kind = kind_of(payload)
        if edit == "message_changed" and said_in(live) == said_in(message):
            answers[kind] = "unchanged"
            continue
        answers[kind] = await calls.replace_message(
            payload,
            f"{event.key}:{live['type']}",
            TURN,  # other handlers are left alone
            restart=edit == "message_changed",
            by=user,
            reason="edited in Slack" if edit == "message_changed" else "deleted in Slack",
        )
    return SOON if "busy" in answers.values() else answers
