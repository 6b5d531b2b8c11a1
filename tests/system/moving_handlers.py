"""Handlers of workspaces that move: each notes in a file what it does."""

from pathlib import Path
from typing import Any

from surelane_worker import Context, Event, Handlers

handlers = Handlers()


def _note(event: Event, text: str) -> str:
    with Path(event.payload["log"]).open("a") as file:
        file.write(f"{text}\n")
    return text


@handlers.on("noted")
async def noted(event: Event, _: Context) -> None:
    """Note which event of its thread this is."""
    _note(event, f"{event.payload['thread']} {event.payload['number']}")


@handlers.on("approved")
async def approved(event: Event, ctx: Context) -> Any:
    """Wait for a person between two steps."""
    first = await ctx.step("first", _note, event, "first")
    answer = await ctx.wait_for("answer")
    return [first, answer, await ctx.step("second", _note, event, "second")]
