"""Handlers of a worker whose workspaces install the app."""

import os
import signal

from surelane_worker import Context, Event, Handlers

handlers = Handlers()


@handlers.on("slack.app_mention")
async def echo(event: Event, ctx: Context) -> None:
    """Answer with what was said; after "die", kill the worker at the first attempt."""
    said = event.slack["text"].partition(" ")[2]
    await ctx.slack.reply(event, said)
    if said.endswith("die") and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
