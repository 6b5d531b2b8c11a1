"""Handlers of a team that hears of edited and deleted messages."""

from surelane.slack import edited_message
from surelane_worker import Context, Event, Handlers

handlers = Handlers()


@handlers.on("slack.app_mention")
async def mentioned(event: Event, ctx: Context) -> None:
    """Do nothing."""


@handlers.edited("typo")
async def edited(event: Event, ctx: Context) -> None:
    """Say in the message's thread what it says now."""
    text = edited_message(event.slack)["text"]
    await ctx.slack.reply(event, f"edited: {text}")


@handlers.deleted("typo")
async def deleted(event: Event, ctx: Context) -> None:
    """Say in the message's thread what it said."""
    text = edited_message(event.slack)["text"]
    await ctx.slack.reply(event, f"deleted: {text}")
