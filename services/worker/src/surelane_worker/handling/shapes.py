"""What goes in and out of a team's functions as JSON: a handler's typed payload, a step's arguments and result."""

import asyncio
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from surelane.events import Event
from surelane.json_text import read_json
from surelane_worker.handling.flow import Key
from surelane_worker.handling.outcomes import Pause, backoff_of, duration

MOST_BYTES = 16_000_000
"""Of a step's result, as JSON in UTF-8."""
MOST_PROBLEMS = 5
"""So many of a payload's problems are named in one error."""
_WRITTEN = str, int, float, list, tuple, dict
"""Classes whose subclasses JSON can hold, also where pydantic does not know them."""
_UNWRITTEN = bytes, bytearray, memoryview, type, Callable
"""Types that pydantic knows, and that JSON cannot hold. Bytes may be UTF-8, or not."""


class StepMismatchError(Exception):
    """A step cannot be run or stored as it is called, or does not fit what is stored under its name."""


class StepsAtOnceError(StepMismatchError):
    """Two tasks run a step of one name at once."""


class StepResultError(StepMismatchError):
    """A step's function has returned what cannot be stored. It is not called again."""


@dataclass(frozen=True, slots=True)
class ResultForm:
    """How a function is called, and how its result becomes JSON and is read again.

    ``adapter`` reads and writes the annotated type of the result, if there is one. ``unstorable`` is the type in it
    that JSON cannot hold. Only coroutine functions are async. A result that is not ``kept`` may be anything.
    """

    is_async: bool
    adapter: TypeAdapter[Any] | None
    unstorable: str | None
    kept: bool = True

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "ResultForm":
        plain = function
        while isinstance(plain, partial):
            plain = plain.func
        annotated = _annotated(plain)
        return cls(inspect.iscoroutinefunction(plain), _adapter(annotated), _unstorable(annotated))

    def check(self, key: Key) -> None:
        """Refuse a function whose annotation says that its result cannot be stored, before it is called."""
        if self.kept and self.unstorable is not None:
            raise StepMismatchError(
                f"step {key} returns {self.unstorable}, as its function is annotated, which JSON cannot hold: return"
                " plain values, a dataclass or a pydantic model, such as a text in Base64 for bytes"
            )

    def text(self, key: Key, result: object) -> str:
        """Return a result as JSON. Refuse what JSON cannot hold, and what is too large."""
        if not self.kept:
            return "null"
        try:
            if self.adapter is not None:
                text = self.adapter.dump_json(result, warnings="error").decode()
            else:
                text = json.dumps(result, allow_nan=False, default=_dumped)
            size = len(text.encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise StepResultError(
                f"the result of step {key} is not JSON: {error}; return plain values, or annotate the function with a"
                " pydantic model"
            ) from None
        if size > MOST_BYTES:
            raise StepResultError(
                f"the result of step {key} has {size:,} bytes; at most {MOST_BYTES:,} are stored: keep the data"
                " elsewhere and return its place"
            )
        return text

    def read(self, key: Key, text: str) -> Any:
        """Return the result that a JSON text stands for. Refuse what does not fit the annotation."""
        if self.adapter is None:
            return read_json(text)
        try:
            return self.adapter.validate_json(text)
        except ValidationError as error:
            raise StepMismatchError(
                f"the stored result of step {key} does not fit the function's annotation, which has changed since:"
                f" give the step a new name, or let the model read the old form ({error.error_count()} errors)"
            ) from None


class StepCall:
    """A function, what it is called with, and its bounds; see :meth:`Context.step`.

    ``hashed`` is the fingerprint of what it is called with. Without ``pauses`` of its own, the worker's hold.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any] = (),
        named: Mapping[str, Any] = MappingProxyType({}),
        retries: int = 0,
        backoff: Pause | None = None,
        timeout: Pause | None = None,
    ) -> None:
        self.form = ResultForm.of(function)
        self.hashed = fingerprint(arguments, named)
        self.retries = retries
        self.pauses = None if backoff is None else backoff_of(backoff)
        self._timeout = None if timeout is None else duration(timeout).total_seconds()
        self._call = partial(function, *arguments, **named)

    async def result(self, in_thread: Callable[[Callable[[], object]], Awaitable[object]]) -> object:
        """Call it once, and return what it returns or raise what it raises."""
        async with asyncio.timeout(self._timeout):
            result = self._call() if self.form.is_async else await in_thread(self._call)
            return await result if inspect.isawaitable(result) else result


def _annotated(function: Callable[..., Any]) -> Any:
    """Return the annotated type of a function's result; ``Any`` if it is not known."""
    try:
        return get_type_hints(function, include_extras=True).get("return", Any)
    except Exception:  # noqa: BLE001 - it may name anything, and nothing that exists
        return Any


def _adapter(annotated: Any) -> TypeAdapter[Any] | None:
    try:
        return None if annotated in (Any, object, type(None), None) else _adapter_of(annotated)
    except Exception:  # noqa: BLE001 - it may be no type that pydantic knows
        return None


def _unstorable(annotated: Any) -> str | None:
    """Return the name of the type, or of the one inside it, that says that a result cannot be stored."""
    plain = get_origin(annotated) or annotated
    if plain is Annotated:  # which may say how it is written
        return None
    if plain in (*_UNWRITTEN, get_origin(Callable[[], Any])):
        return str(getattr(plain, "__name__", plain))
    if inside := get_args(annotated):
        return next(filter(None, map(_unstorable, inside)), None)
    if not inspect.isclass(plain) or issubclass(plain, _WRITTEN) or inspect.isabstract(plain):
        return None
    with suppress(Exception):  # such as of a model that is not complete yet
        try:
            _adapter_of(annotated)
        except PydanticSchemaGenerationError:
            return None if getattr(plain, "_is_protocol", False) else str(plain.__name__)
    return None


@lru_cache(maxsize=1000)
def _adapter_of(annotated: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotated)


def fingerprint(arguments: Sequence[Any], named: Mapping[str, Any]) -> str | None:
    """Return a hash of arguments; ``None`` if there are none, or JSON cannot hold their structure.

    An argument that JSON cannot hold counts by its type only.
    """
    if not arguments and not named:
        return None
    try:
        text = json.dumps([list(arguments), dict(named)], sort_keys=True, default=_comparable)
    except (TypeError, ValueError, RecursionError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _comparable(value: object) -> object:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else type(value).__name__


def _dumped(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


class InvalidPayloadError(Exception):
    """The payload does not fit the handler's annotation. A further attempt would end the same way."""


def with_payload(function: Callable[..., Any], *, is_async: bool) -> Callable[[Event, Any], Any]:
    """Make a function of an event and a context from a function that takes the payload, by its annotation."""
    adapter = _payload_adapter(function)

    async def awaited(event: Event, ctx: Any) -> object:
        return await function(event, ctx, _read(adapter, event))

    def called(event: Event, ctx: Any) -> object:
        return function(event, ctx, _read(adapter, event))

    return awaited if is_async else called


def _payload_adapter(function: Callable[..., Any]) -> TypeAdapter[Any]:
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
