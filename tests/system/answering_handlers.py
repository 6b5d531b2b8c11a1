# ruff: noqa: ARG001 - a handler takes both arguments, used or not
"""Answer commands, modals and menus, for the tests of answers in real worker processes."""

import asyncio
import os
import signal
from pathlib import Path

from surelane_worker import Context, Event, Handlers

handlers = Handlers()


@handlers.command("/deploy", answers=True)
async def deploy(event: Event, ctx: Context) -> list[bool]:
    """Answer twice. The second answer is not taken."""
    return [await ctx.ack(text="deploying", response_type="in_channel"), await ctx.ack(text="again")]


@handlers.command("/text", answers=True)
def text(event: Event, ctx: Context) -> bool:
    return ctx.run(ctx.ack(event.payload["text"]))


@handlers.command("/raise", answers=True)
async def fail(event: Event, ctx: Context) -> None:
    raise RuntimeError("no answer")


@handlers.command("/wrong", answers=True)
async def wrong(event: Event, ctx: Context) -> None:
    """Answer with something that a command cannot take."""
    await ctx.ack(options=[])


@handlers.command("/hold")
async def hold(event: Event, ctx: Context) -> None:
    """Run until the worker stops, without an answer."""
    await asyncio.Event().wait()


@handlers.command("/hold-answer", answers=True)
async def hold_answer(event: Event, ctx: Context) -> bool:
    """Answer once the test says so, by the name of a file."""
    while not Path(event.payload["text"]).exists():  # noqa: ASYNC110, ASYNC240 - the test writes it
        await asyncio.sleep(0.005)
    return await ctx.ack(text="held")


@handlers.view("ask", answers=True)
async def ask(event: Event, ctx: Context) -> bool:
    return await ctx.ack(response_action="errors", errors={"name": "taken"})


@handlers.view("invite", answers=True)
async def invite(event: Event, ctx: Context) -> bool:
    """Check an address. Die or fail before a wrong one's first answer, or wait for a file, as the modal says."""
    view = event.payload["view"]
    address = view["state"]["values"]["email"]["address"]["value"]
    if view["private_metadata"] == "die" and event.attempts == 1 and "@" not in address:
        os.kill(os.getpid(), signal.SIGKILL)
    if view["private_metadata"] == "fail" and event.attempts == 1:
        raise RuntimeError("no answer yet")
    while view["private_metadata"].startswith("/") and not Path(view["private_metadata"]).exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.005)
    if "@" in address:
        return await ctx.ack()
    return await ctx.ack(response_action="errors", errors={"email": "This is no address."})


@handlers.view("large", answers=True)
async def large(event: Event, ctx: Context) -> bool:
    view = {"type": "modal", "private_metadata": "\N{BLACK CHESS KING}" * 80_000}
    return await ctx.ack(response_action="update", view=view)


@handlers.view("unanswered")
async def unanswered(event: Event, ctx: Context) -> None:
    """Leave the answer to the claim."""


@handlers.options("city")
async def cities(event: Event, ctx: Context) -> bool:
    """Answer with as many options as Slack takes."""
    text = {"type": "plain_text", "text": "x" * 75}
    return await ctx.ack(options=[{"text": text, "value": str(number)} for number in range(100)])


@handlers.action("stop")
async def stop(event: Event, ctx: Context) -> None:
    """Do nothing."""


@handlers.on("hold")
async def hold_slot(event: Event, ctx: Context) -> None:
    await asyncio.Event().wait()


@handlers.shortcut(ordered=True)
async def in_turn(event: Event, ctx: Context) -> None:
    """Do nothing, in the order of the thread."""


@handlers.on("nothing")
async def nothing(event: Event, ctx: Context) -> None:
    """Do nothing."""
