"""Handlers of a worker whose workspaces install the app."""

from surelane_worker import Context, Event, Handlers

handlers = Handlers()


@handlers.on("slack.app_mention")
async def echo(event: Event, ctx: Context) -> None:
    """Answer with what was said."""
    await ctx.slack.reply(event, event.slack["text"].partition(" ")[2])
