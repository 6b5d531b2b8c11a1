"""Leave out messages of other apps' bots: only Slack knows whether the author of a message is a bot.

A message that an app posts for a person has the app's ids and the person's, and one that its bot posts has the app's
ids and the bot's. Ingest takes both if they mean the bot.
"""

from collections.abc import Mapping

from surelane.events import Event
from surelane.slack import Payload, inner_event, object_in, text_in
from surelane_worker.handling.asks import ignoring_final_errors
from surelane_worker.handling.context import Context
from surelane_worker.handling.handler import Call, Given
from surelane_worker.handling.outcomes import Complete

BY_BOT = {"unhandled": "another app's bot wrote it, and SURELANE_BOT_MESSAGES is off"}
"""The result of such an event."""
MOST = 1000
"""The authors that a process remembers: a bot does not become a person."""


class Authors:
    """A middleware around all handlers that leaves out what only bots wrote."""

    def __init__(self) -> None:
        self._bots: dict[str, bool] = {}

    async def __call__(self, given: Given, ctx: Context, call_next: Call) -> object:
        for event in given if isinstance(given, list) else [given]:
            if not await self._by_bot(event, ctx):
                return await call_next(given, ctx)
        return Complete(BY_BOT)

    async def _by_bot(self, event: Event, ctx: Context) -> bool:
        user = _asked_about(event.payload) if event.kind.startswith("slack.") else None
        if user is None:
            return False
        if user not in self._bots:
            found: Mapping[str, object] = {}
            with ignoring_final_errors():  # without users:read it counts as a person
                found = object_in((await ctx.slack.client.users_info(user=user)).get("user"))
            if len(self._bots) >= MOST:
                self._bots.clear()
            self._bots[user] = found.get("is_bot") is True
        return self._bots[user]


def _asked_about(payload: Payload) -> str | None:
    """Return the author of a message of another app, in a channel where its bot can be; ``None``: none to ask about."""
    message = inner_event(payload)
    app = text_in(message.get("app_id"))
    if message.get("type") not in ("app_mention", "message") or message.get("channel_type") == "im":
        return None
    of_other = text_in(message.get("bot_id")) is not None and app not in (None, payload.get("api_app_id"))
    return text_in(message.get("user")) if of_other else None
