"""Answer the turns of the gateway, and enqueue jobs that can wait."""

from surelane_worker import Context, Event, Handlers, builtin

handlers = Handlers()
handlers.include(builtin.handlers)  # analytics-write and embed-memories, among others


@handlers.on("agent-turn", timeout="2m", concurrency=4)
async def turn(event: Event, ctx: Context) -> dict[str, str]:
    """Answer in Slack if the person asked there. The answer is also the turn's result."""
    text = str(event.payload["text"])
    answer = think(text)
    await builtin.tell(event, ctx, answer)
    # A second attempt finds the first attempt's jobs by their item keys while they wait.
    await ctx.queue.enqueue(
        "analytics-write", {"tool": "think", "characters": len(text)}, item_key=f"analytics:{event.key}"
    )
    await ctx.queue.enqueue(
        "embed-memories", {"memories": [{"id": event.key, "text": text}]}, item_key=f"memory:{event.key}"
    )
    return {"answer": answer}


def think(text: str) -> str:
    """Call your model here."""
    return f"You said {len(text.split())} word(s)."
