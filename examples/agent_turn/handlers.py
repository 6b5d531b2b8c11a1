"""The agent behind the gateway: answer a turn, and enqueue the work that can wait."""

from surelane_worker import Context, Event, Handlers, builtin
from surelane_worker.builtin.messages import tell

handlers = Handlers()
handlers.include(builtin.handlers)  # analytics-write and embed-memories, among others


@handlers.on("agent-turn", timeout="2m", concurrency=4)
async def turn(event: Event, ctx: Context) -> dict[str, str]:
    """Answers in Slack where the person asked there; the answer is the turn's result in any case."""
    text = str(event.payload["text"])
    answer = think(text)
    await tell(event, ctx, answer)
    # A second attempt finds the first one's jobs while they wait, by their item keys.
    await ctx.queue.enqueue(
        "analytics-write", {"tool": "think", "characters": len(text)}, item_key=f"analytics:{event.key}"
    )
    await ctx.queue.enqueue(
        "embed-memories", {"memories": [{"id": event.key, "text": text}]}, item_key=f"memory:{event.key}"
    )
    return {"answer": answer}


def think(text: str) -> str:
    """Where your model is called."""
    return f"You said {len(text.split())} word(s)."
