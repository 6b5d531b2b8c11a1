"""What the workers run under chaos: two replies with work between them, so that an attempt can end halfway."""

import asyncio

from surelane_worker import Context, Event, Handlers

SECONDS = {"quick": 0.5, "slow": 6.0}
"""How long an event takes, by the word its text has; the slow ones take longer than their lease."""

handlers = Handlers()


@handlers.on("slack.app_mention")
async def answer(event: Event, ctx: Context) -> None:
    """Say when it begins and when it ends."""
    await ctx.slack.reply(event, f"begun {event.key}")
    await asyncio.sleep(SECONDS["slow" if "slow" in event.slack["text"] else "quick"])
    await ctx.slack.reply(event, f"ended {event.key}")
