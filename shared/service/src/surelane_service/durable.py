"""What durable handlers store and read: steps, sleeps, waits, signals, children, tags and progress."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from surelane.calls import Calls
from surelane.codec import (
    ERROR,
    PROGRESS,
    RESULT,
    SEALED,
    Codec,
    DamagedError,
    Location,
    at_signal,
    at_step,
    at_tag,
)
from surelane.jobs import Job, job_text

if TYPE_CHECKING:
    from surelane_service.engine import Settled


@dataclass(frozen=True, slots=True)
class StoredStep:
    """A step that an earlier attempt stored.

    Attributes:
        nth: 1 for the first step of this name in a run, 2 for the second.
        sort: ``step``, ``sleep`` or ``wait``.
        arguments: a hash of them.
        result: JSON text. Before the step is done: its tries, its last error, the seconds left.
        done: whether it has a result, or its time is over. A step that failed has none.
        in_order: whether the handler's own task asked for it, once all that it had asked for before had ended.
    """

    name: str
    nth: int
    sort: str
    arguments: str | None
    result: str | None
    done: bool
    in_order: bool = False

    @property
    def tried(self) -> Mapping[str, Any]:
        """Of a step without a result: ``tries``, the last ``error``, seconds ``left`` to the next, and ``failed``."""
        return {} if self.done or self.sort != "step" else json.loads(self.result or "{}")

    @property
    def ended(self) -> bool:
        """Whether no later attempt runs it or waits for it again."""
        return self.done or bool(self.tried.get("failed"))

    @property
    def cut(self) -> bool:
        """Whether a timeout around it or a cancel of its task ended it."""
        if self.sort == "step":
            return self.ended and "cut" in (self.tried.get("error") or {})
        return self.done and self.result == '{"cut": true}'


class Durable:
    """The SQL functions about the steps, waits and tags of a claimed event."""

    calls: Calls
    codec: Codec
    _fenced: Callable[..., Awaitable["Settled"]]

    async def store_step(
        self,
        identity: int,
        claim: int,
        name: str,
        nth: int,
        arguments: str | None,
        result: str | None,
        errors: str,
        took: timedelta,
        final: bool = False,
        in_order: bool = False,
    ) -> "Settled":
        """Store a :class:`StoredStep` of a claimed event.

        Args:
            result: JSON text; ``None`` if it failed.
            errors: of its tries.
            final: whether its failure is kept: it is not run again.
        """
        arguments, result = await self.sealed_step(identity, name, nth, arguments, result)
        if self.codec.on:
            at = at_step(identity, name, nth, ERROR)
            errors = json.dumps([await self.codec.seal_error(error, at) for error in json.loads(errors)])
        step = name, nth, arguments, result, errors, took, final or result is not None, in_order
        return await self._fenced("store_step", identity, claim, *step)

    async def cut_step(
        self,
        identity: int,
        claim: int,
        name: str,
        nth: int,
        sort: str,
        arguments: str | None,
        took: timedelta,
        in_order: bool,
    ) -> "Settled":
        """Store that a step, a sleep or a wait of a claimed event was cut off: later attempts end it so, too."""
        given, _ = await self.sealed_step(identity, name, nth, arguments, None)
        return await self._fenced("cut_step", identity, claim, name, nth, sort, given, took, in_order)

    async def end_sleep(self, identity: int, claim: int, name: str, nth: int, in_order: bool) -> "Settled":
        """Store that a sleep of a claimed event is over."""
        step = name, nth, None, None, "[]", timedelta(), True, in_order, "sleep"
        return await self._fenced("store_step", identity, claim, *step)

    async def due_waits(self, identity: int) -> set[tuple[str, int]]:
        """Return names and numbers of waits that may end now. Number 0: a signal of that name has come."""
        return {(row["name"], row["nth"]) for row in await self.calls.rows("due_waits", identity)}

    async def end_sleeps(self, identity: int, claim: int) -> "Settled":
        """Store that the sleeps of a claimed event whose time has passed are over."""
        return await self._fenced("end_sleeps", identity, claim)

    async def read_steps(self, identity: int, most: int | None = None) -> list[StoredStep]:
        """Return the steps that earlier attempts of an event stored, without results of more than ``most`` bytes."""
        rows = await self.calls.rows("stored_steps", identity, most)
        return [await self._step(identity, StoredStep(*row)) for row in rows]

    async def _step(self, identity: int, step: StoredStep) -> StoredStep:
        if not (SEALED in (step.result or "") or SEALED in (step.arguments or "")):
            return step
        name, nth = step.name, step.nth
        arguments = step.arguments
        if arguments is not None and SEALED in arguments:
            at = at_step(identity, name, nth, "arguments")
            arguments = json.loads(await self._opened(identity, arguments, at) or "null")
        if step.tried and not step.done:
            at = replace(at_step(identity, name, nth, ERROR), rerun_of=await self.rerun_chain(identity))
            tried = {**step.tried, "error": await self.codec.show(step.tried["error"], at)}
            return replace(step, result=json.dumps(tried), arguments=arguments)
        at = at_signal(identity, name) if step.sort == "wait" else at_step(identity, name, nth)
        return replace(step, result=await self._opened(identity, step.result, at), arguments=arguments)

    async def _opened(self, identity: int, stored: str | None, at: Location) -> str | None:
        """Open what an event has. If it does not open, it may be of the events that this one runs again."""
        if stored is None or SEALED not in stored:
            return stored
        try:
            return await self.codec.open(stored, at)
        except DamagedError:
            chain = await self.rerun_chain(identity)
            return await self.codec.open(stored, replace(at, rerun_of=chain))

    async def step_result(self, identity: int, name: str, nth: int) -> str:
        """Return the result of a step that was stored, as JSON text."""
        stored = await self.calls.call("step_result", identity, name, nth)
        return await self._opened(identity, stored, at_step(identity, name, nth)) or "null"

    async def store_progress(self, identity: int, claim: int, text: str) -> "Settled":
        """Store how far a claimed event is, in words."""
        stored = await self.codec.seal(json.dumps(text), at_step(identity, *PROGRESS))
        return await self._fenced("open_step", identity, claim, *PROGRESS, stored, False)

    async def offer_step(
        self, identity: int, claim: int, name: str, nth: int, token: str, in_order: bool = False
    ) -> "Settled":
        """Let who has the token store a step of a claimed event, by ``agent.finish_step``."""
        step = name, nth, json.dumps({"token": token}), in_order
        return await self._fenced("open_step", identity, claim, *step)

    async def register_undo(self, identity: int, claim: int, name: str, nth: int) -> "Settled":
        """Store that a claimed event has an undo, which is not run yet."""
        return await self._fenced("open_step", identity, claim, name, nth, None)

    async def begin_undo(self, identity: int, claim: int, name: str, nth: int) -> "Settled":
        """Store that an undo of a claimed event begins: ``agent.undo_first`` then knows in which one workers died."""
        return await self._fenced("open_step", identity, claim, name, nth, '{"begun": true}')

    async def sealed_step(
        self, identity: int, name: str, nth: int, arguments: str | None, result: str | None
    ) -> tuple[str | None, str | None]:
        """Return a step's arguments and result as they are stored."""
        if result is not None:
            result = await self.codec.seal(result, at_step(identity, name, nth))
        if arguments is not None and self.codec.on:  # a hash of what was given: others could guess that by it
            at = at_step(identity, name, nth, "arguments")
            arguments = await self.codec.seal(json.dumps(arguments), at)
        return arguments, result

    async def store_tags(self, identity: int, claim: int, tags: Mapping[str, str | None]) -> "Settled":
        """Set tags of a claimed event; ``None`` removes one.

        Raises:
            InvalidInput: the event would have more than 10.
        """
        stored = {
            name: None if value is None else await self._tag(identity, name, value)
            for name, value in tags.items()
        }
        return await self._fenced("store_tags", identity, claim, json.dumps(stored))

    async def _tag(self, identity: int, name: str, value: str) -> dict[str, Any]:
        if not self.codec.on:
            return {"found_by": value, "value": value}
        sealed = await self.codec.seal(json.dumps(value), at_tag(identity, name))
        return {"found_by": await self.codec.tag_key(name, value), "value": json.loads(sealed)}

    async def rerun_chain(self, identity: int) -> list[int]:
        """Return the ids of the earlier runs of an event, newest first."""
        return await self.calls.call("rerun_chain", identity)

    async def take_signal(
        self, identity: int, claim: int, name: str, nth: int, seconds: float | None
    ) -> tuple[str, str | None]:
        """Take a signal for a wait of a claimed event: the answer, and the signal as JSON text if there is one."""
        within = None if seconds is None else timedelta(seconds=seconds)
        (row,) = await self.calls.rows("take_signal", identity, claim, name, nth, within)
        return row["answer"], await self._opened(identity, row["signal"], at_signal(identity, name))

    async def run_child(
        self,
        identity: int,
        claim: int,
        name: str,
        arguments: str | None,
        child: Job,
        in_order: bool = False,
        if_failed: str = "cancel",
    ) -> tuple[str, str | None]:
        """Start a child of a claimed event, once, or take its end; answers as :meth:`take_signal`.

        ``if_failed``: what becomes of it if the event fails; see :meth:`Context.run` of the worker.
        """
        arguments, _ = await self.sealed_step(identity, name, 1, arguments, None)
        child = replace(child, payload=await self.codec.seal_payload(child.payload, of=identity))
        given = identity, claim, name, arguments, job_text(child), in_order, if_failed
        (row,) = await self.calls.rows("run_child", *given)
        return row["answer"], row["signal"]

    async def end_children(self, identity: int, claim: int) -> list[str] | None:
        """Cancel the live children of a claimed event that is to undo, but those that are to be awaited.

        Return the names of the waits for all that live; ``None``: the claim no longer stands.
        """
        return await self.calls.call("end_children", identity, claim)

    async def child_end(self, end: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return how a child ended, from the signal that :meth:`run_child` took."""
        child: int = end["id"]
        error = end["error"] and await self.codec.show(end["error"], Location(child, ERROR))
        result = json.loads(await self.codec.open(json.dumps(end["result"]), Location(child, RESULT)))
        return {**end, "result": result, "error": error or None}

    async def send_signal(
        self, identity: int, name: str, value: str, *, once: bool, by: str
    ) -> tuple[str, str | None]:
        """Send a value, JSON text, to an event by its id; with ``once``, only the first one of a name counts.

        Return ``sent``, ``unknown``, or ``decided`` and the value that counts.
        """
        value = await self.codec.seal(value, at_signal(identity, name))
        (row,) = await self.calls.rows("send_signal", identity, name, value, once, by)
        return row["answer"], await self._opened(identity, row["decided"], at_signal(identity, name))
