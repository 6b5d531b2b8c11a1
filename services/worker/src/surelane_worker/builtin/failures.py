"""Tell a person who spoke to the bot that it failed, where the team has no failure hook for that."""

from surelane.events import Event
from surelane_service.subscriptions import COMMAND
from surelane_worker.handling.context import Context
from surelane_worker.handling.registry import Handlers, registered_in

SPOKEN = ("slack.app_mention", "slack.message.im", "slack.block_actions")
"""The kinds, beside commands, with which people speak to the bot."""


def hooks_for(loaded: Handlers) -> Handlers:
    """Return a failure hook for the kinds of ``loaded`` with which one person at a time speaks to the bot."""
    hooks = Handlers()
    spoken = [
        kind
        for handler in registered_in(loaded).all()
        for kind in handler.kinds
        if (kind in SPOKEN or kind.startswith(COMMAND)) and not handler.grouped
    ]
    if spoken:
        hooks.on_failure(*spoken, timeout="1m")(tell)
    return hooks


async def tell(event: Event, ctx: Context) -> None:
    """Say it in the event's thread. A handler that returned ``Discard`` has decided what it says itself."""
    errors = event.payload["failure"]["errors"]
    if not errors or errors[-1].get("type") != "Discard":
        await ctx.slack.reply(event, ctx.settings.failure_reply)
