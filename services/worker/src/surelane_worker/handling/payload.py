"""Typed payloads: a handler's third argument is the event's payload, read as the type of its annotation."""

import inspect
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter, ValidationError

from surelane.events import Event
from surelane_worker.handling.context import Context

MOST_PROBLEMS = 5
"""So many of a payload's problems are named in one error."""


class InvalidPayloadError(Exception):
    """The payload does not fit the handler's annotation. A further attempt would end the same way."""


def with_payload(function: Callable[..., Any], *, is_async: bool) -> Callable[[Event, Context], Any]:
    """Make a function of an event and a context from a function that takes the payload, by its annotation."""
    adapter = _adapter(function)

    async def awaited(event: Event, ctx: Context) -> object:
        return await function(event, ctx, _read(adapter, event))

    def called(event: Event, ctx: Context) -> object:
        return function(event, ctx, _read(adapter, event))

    return awaited if is_async else called


def _adapter(function: Callable[..., Any]) -> TypeAdapter[Any]:
    try:
        payload = list(inspect.signature(function, eval_str=True).parameters.values())[2]
        if payload.annotation is not payload.empty:
            adapter = TypeAdapter(payload.annotation)
            if not adapter.pydantic_complete:  # a name in it was unknown when the model was made
                adapter.rebuild(raise_errors=True)
            return adapter
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the annotation of its payload cannot be used: {reason}") from error
    raise ValueError(
        f"annotate its third argument, {payload.name}, with the payload's type: a pydantic model, a TypedDict, a"
        " dataclass"
    )


def _read(adapter: TypeAdapter[Any], event: Event) -> object:
    try:
        return adapter.validate_json(event.body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)  # without values
        named = [
            f"{'.'.join(map(str, problem['loc'])) or 'payload'}: {problem['msg']}"
            for problem in found[:MOST_PROBLEMS]
        ]
        more = [f"and {len(found) - MOST_PROBLEMS} more"] if len(found) > MOST_PROBLEMS else []
        raise InvalidPayloadError("; ".join([*named, *more])) from None
