"""Handle events under chaos: reply twice with work in between, so that an attempt can end halfway.

The kind has a limit. The normal traffic stays below it; what has piled up after a fault reaches it.
"""

import asyncio

from surelane_worker import Context, Event, Handlers, Limit

SECONDS = {"quick": 0.5, "slow": 6.0}
"""The duration of an event by a word in its text. The slow ones take longer than their lease."""

AT_ONCE = 24
"""The most events that may run at once. Three workers have slots for 30."""

handlers = Handlers()


@handlers.on("slack.app_mention", limit=Limit(concurrency=AT_ONCE))
async def answer(event: Event, ctx: Context) -> None:
    """Reply at the beginning and at the end."""
    await ctx.slack.reply(event, f"begun {event.key}")
    await asyncio.sleep(SECONDS["slow" if "slow" in event.slack["text"] else "quick"])
    await ctx.slack.reply(event, f"ended {event.key}")
