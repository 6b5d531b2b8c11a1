"""Store a framework's call as a step."""

from collections.abc import Awaitable, Callable
from typing import Any

from surelane_worker.handling.context import Context
from surelane_worker.handling.shapes import StepResultError, StepsAtOnceError
from surelane_worker.handling.steps import StepError, inside_step


async def once(ctx: Context, name: str, function: Callable[[], Awaitable[Any]], key: object = None) -> Any:
    """Return what a step of this name has stored, or store what the function returns.

    Within another step, such as an agent that is a tool of another one, the call is a part of that step.

    Raises:
        StepsAtOnceError: as for :meth:`Context.step`, with this module's advice.
    """
    if inside_step():
        return await function()
    try:
        return await ctx.step(name, function, key=key)
    except StepsAtOnceError:
        raise StepsAtOnceError(
            f"two agents or models ask for a step {name!r} at once, so a later attempt could give one the answer of"
            " the other: give each a name of its own, durable(…, ctx, name=…)"
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
