"""Handle every event with a reply."""

from surelane.events import Event
from surelane_worker import Context, Handlers

handlers = Handlers()


@handlers.on("slack.command.hello", "told")
async def answer(event: Event, ctx: Context) -> None:
    """Reply to the event's own address."""
    await ctx.slack.reply(event, "told")
