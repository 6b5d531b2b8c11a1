"""Quote what people say: mentions and direct messages in Slack, and ``agent-turn`` jobs from anywhere else.

It shows that a new installation works. A team registers its own functions for these kinds, or sets a model: the
extension ``surelane-agents`` then answers in place of these handlers.
"""

from typing import Any

from surelane.events import Event
from surelane.text import escaped, escaped_once
from surelane_worker.handling.context import Context
from surelane_worker.handling.registry import Handlers
from surelane_worker.slack.places import CHANNEL_ID

handlers = Handlers()


@handlers.on("slack.app_mention", "slack.message.im", timeout="10m")
async def answer(event: Event, ctx: Context) -> None:
    """Answer a mention or a direct message in its thread."""
    said = escaped_once(str(event.slack.get("text") or ""))  # without what alarms a channel
    await ctx.slack.reply(event, plain_answer(said, event.slack.get("user")))


@handlers.on("agent-turn", timeout="10m")
async def turn(event: Event, ctx: Context) -> dict[str, Any]:
    """Answer a turn in its result, and in Slack if the payload names a channel.

    A team's own gateway enqueues turns: ``{"text": …, "user": …, "channel": …, "thread_ts": …}``.
    """
    user = event.payload.get("user")
    await tell(event, ctx, plain_answer(escaped(event.text), user))
    return {"answer": plain_answer(event.text, user)}


async def tell(event: Event, ctx: Context, text: str) -> bool:
    """Post ``text``, in Slack's notation, to the channel that the job's payload names. Return whether it names one."""
    named = CHANNEL_ID.fullmatch(str(event.payload.get("channel", "")))
    if named:
        await ctx.slack.reply(event, text)
    return bool(named)


def plain_answer(text: object, user: object) -> str:
    """Return the answer of an installation without an agent: a quotation of ``text``, addressed to ``user``."""
    said = str(text or "").strip()
    greeting = f"<@{user}> " if user else ""
    quoted = "\n".join(f"> {line}" for line in said.splitlines()) if said else "> (no text)"
    return f"{greeting}I received:\n{quoted}"
