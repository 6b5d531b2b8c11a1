"""The built-in handlers of Slack's events: they answer in the thread, so that a new installation is seen to work."""

from surelane.events import Event
from surelane_worker.handling.context import Context
from surelane_worker.handling.registry import Handlers

handlers = Handlers()


@handlers.on("slack.app_mention", "slack.message.im", timeout="5m")
async def answer(event: Event, ctx: Context) -> None:
    """Answers a mention or a direct message in its thread."""
    await ctx.slack.reply(event, plain_answer(event.slack.get("text"), event.slack.get("user")))


def plain_answer(text: object, user: object) -> str:
    """What is answered where nobody has written an agent: what was said."""
    said = str(text or "").strip()
    greeting = f"<@{user}> " if user else ""
    quoted = "\n".join(f"> {line}" for line in said.splitlines()) if said else "> (no text)"
    return f"{greeting}I received:\n{quoted}"
