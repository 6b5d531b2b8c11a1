"""Split a goal into subtasks: count the words of each paragraph of a document, and combine the counts.

curl -H "Authorization: Bearer $TOKEN" localhost:8081/v1/orchestrate --json '{"goal": "One.\\n\\nTwo words."}'
"""

from surelane_worker import Context, Discard, Event, FanOut, Handlers
from surelane_worker.builtin import gathered, split

handlers = Handlers()


@handlers.on("orchestrator-plan")
async def plan(event: Event, ctx: Context) -> FanOut | Discard:
    """Plan one subtask per paragraph. A second attempt starts no subtask twice."""
    paragraphs = [part.strip() for part in event.payload["goal"].split("\n\n") if part.strip()]
    ctx.log.info("planned", subtasks=len(paragraphs))
    return split(event, paragraphs)


@handlers.on("orchestrator-subtask", concurrency=8)
async def count(event: Event, ctx: Context) -> int:
    """Count a paragraph's words. After three failed attempts the synthesis gets the subtask as failed."""
    if ctx.attempt == 1 and "flaky" in event.payload["subtask"]:
        raise RuntimeError("the first attempt fails")
    if "unreadable" in event.payload["subtask"]:
        raise ValueError("cannot be read")
    return len(event.payload["subtask"].split())


@handlers.on("orchestrator-synthesize")
async def synthesize(event: Event, ctx: Context) -> dict[str, int]:
    """Combine the results of the subtasks."""
    found = gathered(await ctx.queue.children(event.id))
    return {"words": sum(found["completed"]), "unread": len(found["failed"])}
