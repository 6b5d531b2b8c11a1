"""``agent-turn``: something that was said to the agent, by whatever way it came, is answered by the team's agent.

A gateway of a team's own enqueues it, with a payload such as ``{"text": …, "user": …, "channel": …, "thread_ts": …}``.
A team registers its own function for the kind; this one says what it received, as the built-in Slack handlers do.
"""

import re

from surelane.events import Event
from surelane_worker.builtin.answer import plain_answer
from surelane_worker.handling.context import Context
from surelane_worker.handling.registry import Handlers

handlers = Handlers()

_CHANNEL = re.compile(r"[CDG][A-Z0-9]+", re.ASCII)


@handlers.on("agent-turn", timeout="5m")
async def turn(event: Event, ctx: Context) -> dict[str, str]:
    """Answers a turn, in Slack where the payload names a channel, and in its result."""
    answer = plain_answer(event.payload.get("text"), event.payload.get("user"))
    await tell(event, ctx, answer)
    return {"answer": answer}


async def tell(event: Event, ctx: Context, text: str) -> bool:
    """Says ``text`` where the job's payload says that it belongs; answers whether it names a Slack channel."""
    named = _CHANNEL.fullmatch(str(event.payload.get("channel", "")))
    if named:
        await ctx.slack.reply(event, text)
    return bool(named)
