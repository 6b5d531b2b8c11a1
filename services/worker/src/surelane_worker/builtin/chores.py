"""``analytics-write``, ``provider-refresh``, ``embed-memories``: work nobody waits for. Results are kept in history."""

import hashlib
import math
import re
from typing import Any

from surelane.events import Event
from surelane_worker.handling.context import Context
from surelane_worker.handling.outcomes import Discard
from surelane_worker.handling.registry import Handlers

handlers = Handlers()

DIMENSIONS = 256
"""Of :func:`embed`'s vectors."""
_WORD = re.compile(r"\w+")


@handlers.on("analytics-write", timeout="1m")
async def write(event: Event, ctx: Context) -> dict[str, Any]:  # noqa: ARG001 - a handler takes both
    """Keeps what a tool reported as the event's result: history is the table that analytics reads."""
    return event.payload


@handlers.on("provider-refresh", timeout="1m")
async def refresh(event: Event, ctx: Context) -> dict[str, Any]:  # noqa: ARG001 - a handler takes both
    """Asks the one provider every installation has, Slack, whether the bot's token still works, and who it is.

    A revoked token ends the event as failed, under Slack's word for it.
    """
    found = await ctx.slack.client.auth_test()
    return {"slack": {name: found.get(name) for name in ("team_id", "team", "user_id", "bot_id", "url")}}


@handlers.on("embed-memories", timeout="5m")
async def embed_memories(event: Event, ctx: Context) -> dict[str, Any] | Discard:  # noqa: ARG001 - a handler takes both
    """Gives each memory (``{"memories": [{"id": …, "text": …}]}``) a vector: see :func:`embed` for what it is worth."""
    memories = event.payload.get("memories", [])
    if not isinstance(memories, list) or not all(isinstance(memory, dict) for memory in memories):
        return Discard("memories must be a list of objects with id and text")
    return {
        "model": f"hashed-words-{DIMENSIONS}",
        "vectors": [
            {"id": memory.get("id"), "vector": embed(str(memory.get("text", "")))} for memory in memories
        ],
    }


def embed(text: str) -> dict[int, float]:
    """A text's words hashed into a sparse unit vector, by dimension.

    The cosine of two such vectors is high where texts share words: a lexical likeness that needs no model, not one of
    meaning. A team with a model registers its own handler for the kind.
    """
    counts: dict[int, float] = {}
    for word in _WORD.findall(text.lower()):
        digest = hashlib.sha256(word.encode()).digest()
        dimension = int.from_bytes(digest[:4], "big") % DIMENSIONS
        counts[dimension] = counts.get(dimension, 0.0) + (1.0 if digest[4] & 1 else -1.0)
    length = math.sqrt(sum(count**2 for count in counts.values()))
    return {dimension: round(count / length, 6) for dimension, count in counts.items() if count}
