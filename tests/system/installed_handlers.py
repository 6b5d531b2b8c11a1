"""Handlers of a worker whose workspaces install the app."""

from surelane_worker import Context, Event, Handlers

handlers = Handlers()


@handlers.on("slack.app_mention")
async def echo(event: Event, ctx: Context) -> None:
    """Answer with what was said."""
    await ctx.slack.reply(event, event.slack["text"].partition(" ")[2])


@handlers.on("slack.view_submission", "slack.view_closed", "slack.block_actions")
async def whose(_: Event, ctx: Context) -> str:
    """Return whose token this event has."""
    return str((await ctx.slack.client.auth_test())["team_id"])
