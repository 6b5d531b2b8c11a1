"""What a worker does with people's messages by default: it quotes them, leaves out bots', and tells of failures.

The quotations show that a new installation works: of mentions and direct messages in Slack, and of ``agent-turn`` jobs
from anywhere else. A team registers its own functions for these kinds, or sets a model: the extension
``surelane-agents`` then answers in place of these handlers.
"""

from collections.abc import Mapping
from typing import Any

from surelane.events import Event
from surelane.slack import CHANNEL_ID, Payload, inner_event, is_direct, names_bot, object_in, text_in
from surelane.text import escaped, escaped_once
from surelane_service.subscriptions import COMMAND, IN_CHANNELS
from surelane_worker.handling.asks import ignoring_final_errors
from surelane_worker.handling.context import Context
from surelane_worker.handling.handler import Call, Given
from surelane_worker.handling.outcomes import Complete
from surelane_worker.handling.registry import Handlers, registered_in

SPOKEN = ("slack.app_mention", "slack.message.im", "slack.block_actions", *IN_CHANNELS)
"""The kinds, beside commands, with which people speak to the bot."""
BY_BOT = {"unhandled": "another app's bot wrote it, and SURELANE_BOT_MESSAGES is off"}
"""The result of an event that only bots wrote."""
MOST = 1000
"""The authors that a process remembers: a bot does not become a person."""

handlers = Handlers()


@handlers.on("slack.app_mention", "slack.message.im", timeout="10m")
async def answer(event: Event, ctx: Context) -> None:
    """Answer a mention or a direct message in its thread."""
    said = escaped_once(str(event.slack.get("text") or ""))  # without what alarms a channel
    await ctx.slack.reply(event, plain_answer(said, event.slack.get("user")))


@handlers.on("agent-turn", timeout="10m")
async def turn(event: Event, ctx: Context) -> dict[str, Any]:
    """Answer a turn in its result, and in Slack if the payload names a channel.

    A team's own gateway enqueues turns: ``{"text": …, "user": …, "channel": …, "thread_ts": …}``.
    """
    user = event.payload.get("user")
    await tell(event, ctx, plain_answer(escaped(event.text), user))
    return {"answer": plain_answer(event.text, user)}


async def tell(event: Event, ctx: Context, text: str) -> bool:
    """Post ``text``, in Slack's notation, to the channel that the job's payload names. Return whether it names one."""
    named = CHANNEL_ID.fullmatch(str(event.payload.get("channel", "")))
    if named:
        await ctx.slack.reply(event, text)
    return bool(named)


def plain_answer(text: object, user: object) -> str:
    """Return the answer of an installation without an agent: a quotation of ``text``, addressed to ``user``."""
    said = str(text or "").strip()
    greeting = f"<@{user}> " if user else ""
    quoted = "\n".join(f"> {line}" for line in said.splitlines()) if said else "> (no text)"
    return f"{greeting}I received:\n{quoted}"


class Authors:
    """A middleware around all handlers that leaves out what only other apps' bots wrote. Only Slack knows who is one.

    A message that an app posts for a person has the app's ids and the person's, and one that its bot posts has the
    app's ids and the bot's. Ingest takes both if they mean the bot.
    """

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
    if message.get("type") not in ("app_mention", "message") or is_direct(message):
        return None
    of_other = text_in(message.get("bot_id")) is not None and app not in (None, payload.get("api_app_id"))
    return text_in(message.get("user")) if of_other else None


def failure_hooks(loaded: Handlers) -> Handlers:
    """Return a failure hook for the kinds of ``loaded`` with which one person at a time speaks to the bot."""
    hooks = Handlers()
    spoken = [
        kind
        for handler in registered_in(loaded).all()
        for kind in handler.kinds
        if (kind in SPOKEN or kind.startswith(COMMAND)) and not handler.grouped
    ]
    if spoken:
        hooks.on_failure(*spoken, timeout="1m")(tell_failure)
    return hooks


async def tell_failure(event: Event, ctx: Context) -> None:
    """Say it in the event's thread. A handler that returned ``Discard`` has decided what it says itself."""
    errors = event.payload["failure"]["errors"]
    if event.kind in IN_CHANNELS and not names_bot(event.payload):
        return  # it was not to the bot
    if not errors or errors[-1].get("type") != "Discard":
        await ctx.slack.reply(event, ctx.settings.failure_reply)
