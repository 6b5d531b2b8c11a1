"""What the soak's workers do with each mention: a stored step, and a short wait as for a call of Slack's API."""

import asyncio

from surelane_worker import Context, Event, Handlers

handlers = Handlers()


@handlers.on("slack.app_mention")
async def take(event: Event, ctx: Context) -> str:
    """Return the text, after a step."""
    text = await ctx.step("read", lambda: event.slack["text"])
    await asyncio.sleep(0.02)
    return str(text)
