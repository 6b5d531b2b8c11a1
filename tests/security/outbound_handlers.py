"""Handlers that answer whatever asks them."""

from surelane.events import Event
from surelane_worker import Context, Handlers

handlers = Handlers()


@handlers.on("slack.command.hello", "told")
async def answer(event: Event, ctx: Context) -> None:
    """Answers where the event says."""
    await ctx.slack.reply(event, "told")
