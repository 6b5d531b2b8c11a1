"""Run the background kinds: ``trigger-fire``, ``analytics-write``, ``provider-refresh`` and ``embed-memories``.

No person waits for them. Their results are kept in history.
"""

import hashlib
import math
import re
from typing import Any

from surelane.events import Event
from surelane.jobs import Continuation
from surelane_worker.handling.context import Context
from surelane_worker.handling.outcomes import Discard, FanOut
from surelane_worker.handling.registry import Handlers

handlers = Handlers()

DIMENSIONS = 256
"""Dimensions of the vectors that :func:`embed` returns."""
_WORD = re.compile(r"\w+")


@handlers.on("trigger-fire", timeout="1m")
async def fire(event: Event, ctx: Context) -> FanOut | dict[str, Any]:
    """Continue a webhook or schedule that fired as a job of the kind in ``SURELANE_TRIGGER_KINDS``.

    Without a kind for the trigger's name, history keeps the event and no job follows.
    """
    name = event.payload.get("trigger") or event.payload.get("cron")
    kind = ctx.settings.trigger_kinds.get(str(name))
    if kind is None:
        return {"trigger": name, "kind": None}
    return route(event, kind)


def route(event: Event, kind: str) -> FanOut:
    """Return the outcome that continues a trigger as one job of ``kind``, with what the webhook sent as its payload.

    Repeated attempts store the job once.
    """
    sent = event.payload.get("payload", event.payload)
    payload = sent if isinstance(sent, dict) else {"payload": sent}
    # Without children the continuation runs at once. It is stored in the transaction that completes the event.
    return FanOut(
        [],
        Continuation(kind, payload, enqueued_by=f"trigger-fire:{event.key}"),
        result={"trigger": event.payload.get("trigger"), "kind": kind},
    )


@handlers.on("analytics-write", timeout="1m")
async def write(event: Event, ctx: Context) -> dict[str, Any]:  # noqa: ARG001 - a handler takes both
    """Keep a tool's report as the event's result: history is the table that analytics reads."""
    return event.payload


@handlers.on("provider-refresh", timeout="1m")
async def refresh(event: Event, ctx: Context) -> dict[str, Any]:  # noqa: ARG001 - a handler takes both
    """Ask Slack, the one provider of every installation, whether the bot's token still works and who the bot is.

    A revoked token ends the event as failed, with Slack's error as the reason.
    """
    found = await ctx.slack.client.auth_test()
    return {"slack": {name: found.get(name) for name in ("team_id", "team", "user_id", "bot_id", "url")}}


@handlers.on("embed-memories", timeout="5m")
async def embed_memories(event: Event, ctx: Context) -> dict[str, Any] | Discard:  # noqa: ARG001 - a handler takes both
    """Return a vector for each memory of ``{"memories": [{"id": …, "text": …}]}``; see :func:`embed`."""
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
    """Hash a text's words into a sparse unit vector, keyed by dimension.

    The cosine of two such vectors is high if the texts share words. It measures common words, not common meaning, and
    needs no model. A team with a model registers its own handler for the kind.
    """
    counts: dict[int, float] = {}
    for word in _WORD.findall(text.lower()):
        digest = hashlib.sha256(word.encode()).digest()
        dimension = int.from_bytes(digest[:4], "big") % DIMENSIONS
        counts[dimension] = counts.get(dimension, 0.0) + (1.0 if digest[4] & 1 else -1.0)
    length = math.sqrt(sum(count**2 for count in counts.values()))
    return {dimension: round(count / length, 6) for dimension, count in counts.items() if count}
