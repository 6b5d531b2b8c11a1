"""Leave values in context variables, and return what earlier events left there."""

from contextvars import ContextVar

from opentelemetry.context import attach, get_value, set_value

from surelane_worker import Context, Event, Handlers

handlers = Handlers()
_left: ContextVar[int | None] = ContextVar("left", default=None)


class Incomparable:
    """A value that refuses to be compared, as arrays do."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("no truth value")


_array: ContextVar[Incomparable] = ContextVar("array")
_array.set(Incomparable())


def _leave(number: int) -> list[object]:
    found = [_left.get(), get_value("left")]
    _left.set(number)
    _array.set(Incomparable())
    attach(set_value("left", number))  # as a library that forgets to detach
    return found


@handlers.on("leave")
async def leave(event: Event, ctx: Context) -> list[object]:  # noqa: ARG001 - a handler's signature
    """Return what it found, and leave its number."""
    return _leave(event.payload["number"])


@handlers.on("raise")
async def leave_and_raise(event: Event, ctx: Context) -> list[object]:
    """Leave a number, and fail the first attempt."""
    found = _leave(event.payload["number"])
    if ctx.attempt == 1:
        raise RuntimeError("not yet")
    return found


@handlers.on("leave in parts")
async def leave_in_parts(event: Event, ctx: Context) -> list[object]:
    """Return what it found after it left its own numbers."""
    _leave(event.payload["number"])
    await ctx.step("step", lambda: None)
    return [_left.get(), get_value("left")]
