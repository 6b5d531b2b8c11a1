"""Handle the events of the encryption's tests in real worker processes: each repeats what a person wrote everywhere."""

import os
from typing import Any

from surelane_worker import Context, Continuation, Event, FanOut, Handlers, Job

handlers = Handlers()
handlers.cron("declared", "0 3 1 1 *", kind="note", payload={"text": os.environ.get("DECLARED_TEXT")})


@handlers.on("slack.app_mention")
async def mentioned(event: Event, ctx: Context) -> object:
    """Fail once with the text, then keep it in a step, say it, enqueue it and return it."""
    text = event.slack["text"]
    kept = await ctx.step("look", _seen, text)
    if event.attempts == 1:
        raise ValueError(f"cannot handle {text}")
    await ctx.slack.reply(event, text)
    await ctx.queue.enqueue("note", {"text": text}, item_key=f"note of {event.key}")
    children = [Job("note", {"text": text})]
    return FanOut(children, Continuation("sum", {"of": text}), result={"said": text, **kept})


def _seen(text: str) -> dict[str, Any]:
    return {"seen": text}


@handlers.on("note")
async def note(event: Event, ctx: Context) -> object:
    """Say that a job arrived."""
    ctx.log.debug("a note")
    return event.payload


@handlers.on("looked")
async def looked(_event: Event, ctx: Context) -> object:
    """Return what the step has, of this attempt or an earlier one."""
    return await ctx.step("look", _seen, "anew")


@handlers.on("sum")
async def total(event: Event, ctx: Context) -> object:
    """Return what the children returned."""
    return [child.result for child in await ctx.queue.children(event.id)]


@handlers.command("/repeat", answers=True)
async def repeat(event: Event, ctx: Context) -> bool:
    """Answer with the text."""
    return await ctx.ack(text=event.payload["text"])
