"""Cancel the turn of a message that a person deletes. If they edit the message, begin anew with its new text.

Every worker with a bot token handles these kinds beside its own. A team's ``handlers.edited`` and ``handlers.deleted``
come first.
"""

from typing import Any

from surelane.slack import edit_of, edited_message, inner_event, kind_of, said_in, text_in
from surelane_agents.agent_settings import agent_settings
from surelane_agents.calls import agent_calls
from surelane_agents.context.thread import TURN
from surelane_worker import Context, Event, Handlers, Snooze
from surelane_worker.handling.routes import DELETED, EDITED

handlers = Handlers()
SOON = Snooze("2s")
"""The event is locked. This may last, so it costs no attempts."""


@handlers.on(*EDITED.kinds, *DELETED.kinds, timeout="1m")
async def replace_turn(event: Event, ctx: Context) -> object:
    """Cancel the turn of the message, if one waits or runs. After an edit, store the message as it is now.

    Slack reports the edit of a mention as an edit, as the mention again, or as both.
    """
    edited = edit_of(event.slack) != "message_deleted"
    message, settings = edited_message(event.slack), agent_settings()
    if settings.model is None or settings.model_edited == "ignore" or not message:
        return {"unhandled": "no turn"}
    user = text_in(message.get("user")) or "unknown"
    # As if the message had been posted as it is now, at the time of the edit.
    places = "channel", "channel_type", "event_ts"
    where = {name: event.slack[name] for name in places if name in event.slack}
    calls, answers = agent_calls(ctx), dict[str, str | None]()
    about: dict[str, Any] = {**event.payload, "event": {**message, **where}}
    for live in map(inner_event, await calls.live_messages(about)):
        sort = {name: live[name] for name in ("type", "channel_type") if name in live}
        payload = {**about, "event": about["event"] | sort}
        kind = kind_of(payload)
        if edited and said_in(live) == said_in(message):
            answers[kind] = "unchanged"
            continue
        key, reason = f"{event.key}:{live['type']}", f"{'edited' if edited else 'deleted'} in Slack"
        about_it: Any = {"restart": edited, "by": user, "reason": reason}
        answers[kind] = await calls.replace_message(payload, key, TURN, **about_it)  # of agents alone
    return SOON if "busy" in answers.values() else answers
