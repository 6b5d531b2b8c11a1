"""Store a framework's call as a step."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from surelane_worker import Context
from surelane_worker.handling.shapes import StepResultError, StepsAtOnceError
from surelane_worker.handling.steps import StepError, inside_step


async def once(ctx: Context, name: str, function: Callable[[], Awaitable[Any]], key: object = None) -> Any:
    """Return what a step of this name has stored, or store what the function returns.

    Within another step, such as an agent that is a tool of another one, the call is a part of that step.
    """
    if inside_step():
        return await function()
    try:
        return await ctx.step(name, function, key=key)
    except StepsAtOnceError:
        raise StepsAtOnceError(
            f"two agents or models ask for a step {name!r} at once, so a later attempt could give one the answer of"
            " the other: give each a name of its own, durable(…, name=…)"
        ) from None


async def once_or_told(
    ctx: Context, name: str, function: Callable[[], Awaitable[Any]], key: object, told: Callable[[str], Any]
) -> Any:
    """As :func:`once`, for a tool. Of a result that cannot be stored the model is ``told`` why, in its place."""
    try:
        return await once(ctx, name, function, key)
    except StepError as error:
        if error.type != StepResultError.__name__:
            raise
        ctx.log.warning("a tool's result cannot be stored", tool=name, error=error.message)
        return told(f"The tool has done its work, but {error.message}")


@asynccontextmanager
async def streamed(
    ctx: Context, name: str, read: Callable[[Callable[[Any], None]], Awaitable[Any]]
) -> AsyncIterator[tuple[AsyncIterator[Any], asyncio.Future[Any]]]:
    """Let a step :func:`once` read a stream. ``read`` adds each part, and returns the whole as JSON.

    Yield what comes of it, and the step. Of a stored response nothing comes. A reader that leaves the block early does
    not end the step: its response is paid for, so it is stored.
    """
    came = asyncio.Queue[tuple[Any, ...]]()
    step = asyncio.ensure_future(once(ctx, name, partial(read, lambda each: came.put_nowait((each,)))))
    step.add_done_callback(lambda _: came.put_nowait(()))

    async def parts() -> AsyncIterator[Any]:
        while each := await came.get():
            yield each[0]
        await step

    try:
        yield parts(), step
        await step
    finally:
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
