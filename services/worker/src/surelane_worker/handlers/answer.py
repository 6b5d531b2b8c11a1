"""The built-in handlers: they answer in the thread, so that a new installation can be seen to work."""

from surelane.events import Event
from surelane_worker.context import Context
from surelane_worker.handlers.registry import Handlers

handlers = Handlers()


@handlers.on("slack.app_mention", "slack.message.im", timeout="5m")
async def answer(event: Event, ctx: Context) -> None:
    """Answers a mention or a direct message in its thread."""
    said = str(event.slack.get("text", "")).strip()
    user = event.slack.get("user")
    greeting = f"<@{user}> " if user else ""
    quoted = "\n".join(f"> {line}" for line in said.splitlines()) if said else "> (no text)"
    await ctx.slack.reply(event, f"{greeting}I received:\n{quoted}")
