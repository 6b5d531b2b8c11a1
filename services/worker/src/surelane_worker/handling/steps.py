"""Run the steps of a handler, and store their results, so that a later attempt does not run them again.

The first success of a step is stored in one statement, fenced by the claim, before the next line of the handler runs.
One statement reads the steps of all earlier attempts, when the handler comes to its first step. An event's first claim
has no earlier attempts, so it reads nothing, unless the event is a replay.
"""

import asyncio
import contextvars
import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from time import perf_counter
from typing import Any, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError

from surelane.errors import DatabaseUnavailable, TransientConflict
from surelane.events import Event
from surelane_service.engine import Engine, Settled, StoredStep
from surelane_service.logs import Logger
from surelane_worker.handling.outcomes import Backoff, Pause, duration
from surelane_worker.handling.records import message_of, plain
from surelane_worker.handling.threads import Threads
from surelane_worker.slack.notes import ClaimLostError
from surelane_worker.slack.replies import SCOPE

MOST_BYTES = 1_000_000
"""Of a step's result, as JSON in UTF-8."""
LONGEST_NAME = 200
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.1
"""Seconds between two tries to store a step while another transaction has the event locked."""
AWAY = 0.25
"""Seconds between two tries while the database cannot be reached."""
RETRIES = Backoff(timedelta(seconds=1), timedelta(seconds=30))
"""The pauses between the tries of one step."""


class StepError(Exception):
    """A step cannot be run or stored."""


class StepMismatchError(StepError):
    """A step does not fit what an earlier attempt stored under its name."""


class Suspended(BaseException):
    """The handler stops here, and runs again when a wait of its event ends.

    It is no :class:`Exception`, so that a handler does not catch it by accident.
    """


@dataclass(frozen=True, slots=True)
class Key:
    """A step's name, and its number among the steps of that name in this run: 1 is the first."""

    name: str
    nth: int

    def __str__(self) -> str:
        return self.name if self.nth == 1 else f"{self.name} (number {self.nth})"


class Steps:
    """The steps of one attempt of one event."""

    def __init__(
        self,
        engine: Engine,
        event: Event,
        log: Logger,
        check_claim: Callable[[], Awaitable[None]],
        *,
        grouped: bool,
        retries: Backoff = RETRIES,
        threads: Threads | None = None,
    ) -> None:
        """Keep the arguments.

        Args:
            engine: stores the steps.
            event: the event whose steps these are.
            log: the handler's logger.
            check_claim: awaited before each step: it returns while the claim stands, or cancels the handler.
            grouped: whether the handler takes several events. Then it has no steps.
            retries: the pauses between the tries of one step.
            threads: runs synchronous steps.
        """
        self._threads = threads or Threads(lambda: False)
        self.engine = engine
        self.event = event
        self._grouped = grouped
        self._retries = retries
        self._log = log
        self._check_claim = check_claim
        self._counts = Counter[str]()
        self._stored: dict[Key, StoredStep] | None = None
        self._asked: set[Key] = set()
        self._reading = asyncio.Lock()
        self.running = 0
        """Steps that run now."""
        self.ran = asyncio.Event()
        """Set as a step ends."""
        self.suspended = False
        """Whether a wait has suspended the handler. Its other tasks may still run, but begin no step."""

    def key(self, name: str) -> Key:
        """Return the key of the next step of this name.

        Raises:
            StepError: the name cannot be used, the caller is itself a step, or the handler takes several events.
            Suspended: a wait in another task has suspended the handler.
        """
        if self.suspended:
            raise Suspended
        if self._grouped:
            raise StepError(
                "steps and waits belong to one event: register this handler with on, not on_group"
            )
        if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise StepError(f"the name of a step has 1 to {LONGEST_NAME} printable characters: {name!r:.80}")
        if outer := _INSIDE.get():
            raise StepError(
                f"step {outer!r} contains another step or wait, {name!r}: call it outside of the step"
            )
        self._counts[name] += 1
        return Key(name, self._counts[name])

    async def run(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
        *,
        retries: int = 0,
        timeout: Pause | None = None,
    ) -> Any:  # noqa: ANN401 - the function's result
        """Run a function and store its result, or return the result that is stored; see :meth:`Context.step`."""
        key, named = self.key(name), named or {}
        shape = Shape.of(function)
        hashed = fingerprint(arguments, named)
        if stored := await self.stored(key, "step"):
            if stored.arguments is not None and hashed is not None and stored.arguments != hashed:
                raise StepMismatchError(
                    f"step {key} was stored for other arguments than it is now called with: give each step of a loop"
                    " a name of its own; give the step a new name if the code changed its arguments; put arguments"
                    " that may differ between attempts into a lambda"
                )
            if stored.done:
                return shape.read(key, stored.result or "null")
        limit = None if timeout is None else duration(timeout).total_seconds()
        errors: list[dict[str, Any]] = []
        self.running += 1
        try:
            while True:
                await self._check_claim()
                began = perf_counter()
                try:
                    text = await self._tried(key, shape, partial(function, *arguments, **named), limit)
                except Exception as error:
                    errors.append(_record(error, self.event.attempts))
                    final = len(errors) > retries or isinstance(error, StepError)
                    if final:
                        await self._store(key, hashed, None, errors, began)
                        raise
                    self._log.warning("step failed", step=str(key), error=type(error).__name__)
                    await asyncio.sleep(self._retries.pause(len(errors)))
                    continue
                await self._store(key, hashed, text, errors, began)
                return shape.read(key, text)
        finally:
            self.running -= 1
            self.ran.set()

    async def _tried(self, key: Key, shape: "Shape", call: Callable[[], Any], limit: float | None) -> str:
        inside, scope = _INSIDE.set(key.name), SCOPE.set(f"{key.name}:{key.nth}")
        try:
            async with asyncio.timeout(limit):
                result = call() if shape.is_async else await self._threads.run(call)
                if inspect.isawaitable(result):
                    result = await result
        finally:
            _INSIDE.reset(inside)
            SCOPE.reset(scope)
        return shape.text(key, result)

    async def stored(self, key: Key, sort: str) -> StoredStep | None:
        """Return what earlier attempts stored under a key.

        Raises:
            StepMismatchError: it is of another sort.
        """
        if self._stored is None:
            async with self._reading:
                if self._stored is None:
                    self._stored = await self._read()
        self._asked.add(key)
        found = self._stored.get(key)
        if found is not None and found.sort != sort:
            raise StepMismatchError(
                f"{key} was stored as a {found.sort} and is now used as a {sort}: give the {sort} a new name"
            )
        return found

    async def _read(self) -> dict[Key, StoredStep]:
        # The first claim finds steps where the event is a replay, and notes say so.
        if self.event.claim == 1 and self.event.notes is None:
            return {}
        return {
            Key(step.name, step.nth): step
            for step in await self.patiently(partial(self.engine.read_steps, self.event.id))
        }

    def unasked(self) -> list[str]:
        """Return the steps that earlier attempts stored and that this attempt did not use."""
        return sorted(str(key) for key in (self._stored or {}) if key not in self._asked)

    async def _store(
        self, key: Key, hashed: str | None, text: str | None, errors: list[dict[str, Any]], began: float
    ) -> None:
        took = timedelta(seconds=perf_counter() - began)
        recorded = json.dumps(errors)
        event = self.event
        await self.fenced(
            lambda: self.engine.store_step(
                event.id, event.claim, key.name, key.nth, hashed, text, recorded, took
            )
        )

    async def fenced(self, call: Callable[[], Awaitable[Settled]]) -> None:
        """Send a fenced statement until it is done.

        Raises:
            ClaimLostError: the claim no longer stands.
        """
        pause = FIRST_PAUSE
        while True:
            answer = await self.patiently(call)
            if answer is Settled.DONE:
                return
            if answer is Settled.STALE:
                raise ClaimLostError
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def patiently(self, call: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - the call's answer
        """Send a statement until the database answers. Stop at the latest when the lease ends."""
        warned = False
        while True:
            try:
                return await call()
            except (DatabaseUnavailable, TransientConflict) as error:
                if not warned:
                    self._log.warning("a step waits: the database is away", error=type(error).__name__)
                warned = True
            await asyncio.sleep(AWAY)
            await self._check_claim()


_INSIDE: contextvars.ContextVar[str | None] = contextvars.ContextVar("step", default=None)
"""The step that runs."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a function is called, and how its result becomes JSON and is read again.

    Attributes:
        is_async: whether the function is a coroutine function. Others run in a thread.
        adapter: reads and writes the annotated type of the result; ``None`` where there is none.
    """

    is_async: bool
    adapter: TypeAdapter[Any] | None

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Shape":
        """Return a function's shape."""
        plain = function
        while isinstance(plain, partial):
            plain = plain.func
        return cls(inspect.iscoroutinefunction(plain), _adapter(plain))

    def text(self, key: Key, result: object) -> str:
        """Return a result as JSON.

        Raises:
            StepError: JSON cannot hold it, or it is too large.
        """
        try:
            if self.adapter is not None:
                text = self.adapter.dump_json(result, warnings="error").decode()
            else:
                text = json.dumps(result, allow_nan=False, default=_dumped)
            size = len(text.encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise StepError(
                f"the result of step {key} is not JSON: {error}; return plain values, or annotate the function with a"
                " pydantic model"
            ) from None
        if size > MOST_BYTES:
            raise StepError(
                f"the result of step {key} has {size:,} bytes; at most {MOST_BYTES:,} are stored: keep the data"
                " elsewhere and return its place"
            )
        return text

    def read(self, key: Key, text: str) -> Any:  # noqa: ANN401 - the function's result
        """Return the result that a JSON text stands for.

        Raises:
            StepMismatchError: it does not fit the annotation.
        """
        if self.adapter is None:
            return json.loads(text)
        try:
            return self.adapter.validate_json(text)
        except ValidationError as error:
            raise StepMismatchError(
                f"the stored result of step {key} does not fit the function's annotation, which has changed since:"
                f" give the step a new name, or let the model read the old form ({error.error_count()} errors)"
            ) from None


def _adapter(function: Callable[..., Any]) -> TypeAdapter[Any] | None:
    try:
        annotated = get_type_hints(function, include_extras=True).get("return", Any)
    except Exception:  # noqa: BLE001 - an annotation may name anything, or nothing that exists
        return None
    if annotated in (Any, object, type(None), None):
        return None
    try:
        return _adapter_of(annotated)
    except Exception:  # noqa: BLE001 - not a type that pydantic knows
        return None


@lru_cache(maxsize=1000)
def _adapter_of(annotated: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - any type
    return TypeAdapter(annotated)


def fingerprint(arguments: Sequence[Any], named: Mapping[str, Any]) -> str | None:
    """Return a hash of arguments. An argument that JSON cannot hold counts by its type only.

    Return ``None`` if there are no arguments, or JSON cannot hold their structure.
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


def _record(error: BaseException, attempt: int) -> dict[str, Any]:
    return {
        "type": type(error).__name__,
        "message": plain(message_of(error)),
        "at": datetime.now(UTC).isoformat(),
        "attempt": attempt,
    }
