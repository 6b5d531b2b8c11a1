"""Run the steps and waits of a handler, and store their results, so that a later attempt does not repeat them.

The result of a step is stored in one statement, fenced by the claim, before the next line of the handler runs. So is
each other end that the handler sees, such as a failure or a timeout, before anything later is stored or shown.

A wait suspends the handler until a time comes, or a value is sent to its event. A suspended event holds no claim, no
slot and no memory. When its wait ends, the handler runs again from its top, on any worker.
"""

import asyncio
import contextvars
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import InitVar, dataclass, field, replace
from datetime import timedelta
from typing import Any

from surelane.codec import SealedError
from surelane_service.durable import StoredStep
from surelane_service.lifecycle import RUN
from surelane_worker.handling.fence import Fence
from surelane_worker.handling.flow import STOP, AttemptTasks, Flow, Key
from surelane_worker.handling.outcomes import Backoff, Pause, Wait, duration
from surelane_worker.handling.past import PATCH, UNDO, End, Past, Signal, Tasks, signal_of
from surelane_worker.handling.records import failure_record
from surelane_worker.handling.shapes import StepCall, StepMismatchError, StepResultError, StepsAtOnceError
from surelane_worker.handling.threads import Threads
from surelane_worker.slack.limits import SlackBusyError
from surelane_worker.slack.notes import ClaimLostError
from surelane_worker.slack.replies import SCOPE
from surelane_worker.slack.tokens import NotInstalledError

LONGEST_NAME = 200
RETRIES = Backoff(timedelta(seconds=1), timedelta(seconds=30))
"""The pauses between the tries of one step."""
HELD = 2.0
"""Seconds that a step keeps its slot between two tries. A longer pause suspends the handler."""

Errors = list[dict[str, Any]]
Take = Callable[[], Awaitable[tuple[str, str | None]]]
"""Takes a signal for a wait: the answer, and the signal as JSON text."""


class StepError(Exception):
    """A step has failed: its function, and all its further tries.

    A later attempt raises it again at the same place, once this attempt has gone on past it.

    Attributes:
        type: the name of the exception's class, such as ``PaymentError``.
        message: its text.
        where: the file and line of the code that raised it; ``None`` where unknown.
        __cause__: the exception itself, in the attempt in which the step was run.
    """

    def __init__(self, step: str, type: str, message: str, where: str | None = None) -> None:  # noqa: A002 - its name
        super().__init__(f"step {step} failed: {type}: {message}")
        self.type = type
        self.message = message
        self.where = where


NO_FAILURES = (StepMismatchError, ClaimLostError, SlackBusyError, NotInstalledError, SealedError)
"""Exceptions that are no failures of a step: they put the event off, or end its attempt."""


@dataclass(eq=False)
class Steps:
    """The steps of one attempt of one event."""

    fence: Fence
    threads: Threads
    attempt: AttemptTasks = field(default_factory=AttemptTasks)
    own: InitVar[Tasks] = frozenset()
    """The tasks whose steps come in the order of the handler's code."""
    grouped: bool = False
    retries: Backoff = RETRIES
    note_version: Callable[[], Awaitable[None]] | None = None
    """Awaited before something new is stored."""
    replaying: bool = False
    """Whether the handler stops where it would do something new."""

    def __post_init__(self, own: Tasks) -> None:
        self.flow = Flow(self.attempt, self.finalize, self._due)
        self.past = Past(self.fence, own, self.flow.stored)
        self.flow.reached = self.past.is_over
        self.undos: list[tuple[Key, StepCall]] = []
        """What the handler registered with :meth:`undo`, in order."""
        self.progressed = False
        """Whether this attempt has stored something new. Then the next ones count anew."""
        self._counts = Counter[str]()
        self._running = set[str]()
        self._ends: list[End] = []
        self._storing = asyncio.Lock()
        self._calls: dict[Key, Any] = {}
        """The steps that run, each with its task."""
        self._stopping: asyncio.Task[None] | None = None
        self._patches: dict[Key, bool] = {}
        self._patching = asyncio.Lock()

    def key(self, name: str) -> Key:
        """Return the key of the next step of this name."""
        self._check(name)
        self._counts[name] += 1
        return Key(name, self._counts[name])

    def _check(self, name: str) -> None:
        """Refuse a step that cannot be told from another one in later attempts.

        Raises:
            StepMismatchError: the name cannot be used, another task runs a step of this name, the caller is itself a
                step, or the handler takes several events.
            Suspended: a wait in another task has suspended the handler.
        """
        self.flow.check()
        if self.grouped:
            raise StepMismatchError(
                "steps and waits belong to one event: register this handler with on, not on_group"
            )
        if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise StepMismatchError(
                f"the name of a step has 1 to {LONGEST_NAME} printable characters: {name!r:.80}"
            )
        if outer := _INSIDE.get():
            raise StepMismatchError(
                f"step {outer!r} contains another step or wait, {name!r}: call it outside of the step"
            )
        if name in self._running:
            raise StepsAtOnceError(
                f"two tasks run a step {name!r} at once, so a later attempt could give one the result of the other:"
                " name each with key=, such as the item that it is for"
            )

    async def run(self, name: str, call: StepCall, key: object = None) -> Any:
        """See :meth:`Context.step`."""
        return await self._once(self.key(name if key is None else f"{name} [{key}]"), call)

    async def undo(self, name: str, call: StepCall) -> None:
        """See :meth:`Context.undo`."""
        key = self.key(f"{UNDO}{name}")
        call.form = replace(call.form, kept=False)
        self.undos.append((key, call))
        with self._asking(key, "step"):
            if await self.stored(key, "step") is None:
                await self.finalize()
                await self.fence.send(self.fence.engine.register_undo, key.name, key.nth)

    async def begin_undos(self) -> list[str]:
        """Let the stopped handler's undos run. Return the stored undos that it did not get to."""
        self.flow.close()
        self._ends.clear()
        run = replace(self.attempt, main=asyncio.current_task(), mark=object())
        RUN.set(run.mark)
        self.flow, self.replaying = Flow(run, self.finalize, self._due), False
        self.flow.left = self.attempt.mark
        await self.past.all()
        return self.past.lost_undos()

    async def run_undo(self, key: Key, call: StepCall, *, final: bool) -> None:
        """Run an undo. That it begins is stored: if its workers die, the others still run. ``final``: its last try."""
        await self.fence.send(self.fence.engine.begin_undo, key.name, key.nth)
        try:
            await self._once(key, call)
        except StepError:
            if final:
                await self.finalize()
            self._ends.clear()
            raise

    async def left_undos(self) -> bool:
        """Return whether an undo has not ended: neither done nor failed for good."""
        steps = await self.fence.patiently(self.fence.engine.read_steps, self.fence.event.id)
        return any(step.name.startswith(UNDO) and not step.ended for step in steps)

    async def stop_replay(self) -> None:
        """Park this task for good if the handler is to do nothing new."""
        with self.flow.busy():
            await self._stop()

    async def _stop(self) -> None:
        if self.replaying:
            await self.flow.wait(Wait(STOP, STOP, 0, None, blocking=True))

    async def _due(self) -> set[tuple[str, int]]:
        return await self.fence.engine.due_waits(self.fence.event.id)

    async def _once(self, key: Key, call: StepCall) -> Any:
        self._running.add(key.name)
        try:
            with self._asking(key, "step", call.hashed):
                stored = await self._given(key, "step", call.hashed)
                if stored is not None and stored.ended:
                    if not stored.done:
                        raise _error(key, stored.tried["error"])
                    return call.form.read(key, await self.past.result(key))
                await self._stop()
                call.form.check(key)
                await self.flow.turn(key)
                await self.finalize()
                self._calls[key] = asyncio.current_task()
                return await self._run(key, call, {} if stored is None else stored.tried)
        finally:
            self._running.discard(key.name)
            self._calls.pop(key, None)

    async def _run(self, key: Key, call: StepCall, tried: Mapping[str, Any]) -> Any:
        hashed, pauses = call.hashed, call.pauses or self.retries
        before, left = tried.get("tries", 0) % (call.retries + 1), tried.get("left") or 0
        if left > 0:
            await self.flow.wait(Wait("step", key.name, key.nth, left, blocking=True))
        errors: Errors = []
        while True:
            await self.fence.check_claim()
            began = time.perf_counter()
            try:
                text = await self._tried(key, call, errors)
            except StepResultError as error:
                raise await self._refused(key, hashed, error, began) from error
            except NO_FAILURES:
                raise
            except Exception as error:
                errors.append(failure_record(error, self.fence.event.attempts))
                tries = before + len(errors)
                if tries > call.retries:
                    await self._store(key, hashed, None, errors, began)
                    self._ends.append(End(key, "step", hashed, began, cut=False))
                    raise _error(key, errors[-1]) from error
                self.fence.log.warning("step failed", step=str(key), error=type(error).__name__)
                pause = pauses.pause(tries)
                if pause <= HELD:
                    await asyncio.sleep(pause)
                    continue
                await self._store(key, hashed, None, errors, began)
            else:
                async with nullcontext() if self.flow.over else self.flow.giving():
                    await self._store(key, hashed, text, errors, began)
                return call.form.read(key, text)
            await self.flow.wait(Wait("step", key.name, key.nth, pause, blocking=True))

    async def _refused(self, key: Key, hashed: str | None, error: Exception, began: float) -> StepError:
        """Fail a step for good, in one statement: its function did its work, and would return the same again."""
        record = failure_record(error, self.fence.event.attempts)
        await self._store(key, hashed, None, [record], began, final=True)
        return _error(key, record)

    async def finalize(self) -> None:
        """Store what failed or was cut off, as the handler goes on past it: in later attempts it ends alike."""
        if not self._ends:
            return
        await self.flow.follow()
        async with self._storing:
            while self._ends:
                await self._store_end(self._ends[0])

    async def _store_end(self, end: End) -> None:
        """Store the end of a step, or of a wait, that the handler has seen."""
        key, took = end.key, timedelta(seconds=time.perf_counter() - end.began)
        engine, in_order, named = self.fence.engine, self.past.in_order(key), (key.name, key.nth)
        if end.cut:
            await self.fence.send(engine.cut_step, *named, end.sort, end.arguments, took, in_order)
        else:
            await self.fence.send(engine.store_step, *named, end.arguments, None, "[]", took, True, in_order)
        if end in self._ends:
            self._ends.remove(end)

    async def _tried(self, key: Key, call: StepCall, errors: Errors) -> str:
        """Call the function, and return its result as JSON.

        Of a thread that was waited for after a cancel, the result is stored: it counts unless the handler goes on.
        """
        late, began = list[object](), time.perf_counter()

        def in_thread(function: Callable[[], object]) -> Awaitable[object]:
            def noted() -> object:
                late.append(function())
                return late[-1]

            return self.threads.run(noted)

        inside, scope = _INSIDE.set(key.name), SCOPE.set(f"{key.name}:{key.nth}")
        try:
            result = await call.result(in_thread)
        except asyncio.CancelledError:
            if late:
                with suppress(Exception):
                    await self._keep(key, call, late[-1], errors, began)
            raise
        except (
            SystemExit,
            KeyboardInterrupt,
        ) as error:  # in a task of the handler's, they would end the worker
            raise RuntimeError(repr(error)) from error
        finally:
            _INSIDE.reset(inside)
            SCOPE.reset(scope)
        return call.form.text(key, result)

    async def _keep(self, key: Key, call: StepCall, result: object, errors: Errors, began: float) -> None:
        try:
            text = call.form.text(key, result)
        except StepResultError as error:
            await self._refused(key, call.hashed, error, began)
        else:
            await self._store(key, call.hashed, text, errors, began)

    def running(self) -> set[asyncio.Task[Any]]:
        """Return the tasks in which steps run, but the current one."""
        return {task for task in self._calls.values() if task not in (None, asyncio.current_task())}

    async def stored(self, key: Key, sort: str) -> StoredStep | None:
        """Return what earlier attempts stored under a key; refuse another sort, and what is new before it."""
        found = await self.past.get(key)
        if self.replaying and self._stopping is None and self.past.is_over():
            # What follows at once may still register an undo. What takes longer, such as a call, is not awaited.
            self._stopping = asyncio.create_task(self.stop_replay())
        self.past.ask(key, new=found is None)
        if found is None and self.note_version is not None:
            await self.note_version()
        if found is not None and found.sort != sort:
            raise StepMismatchError(
                f"{key} was stored as a {found.sort} and is now used as a {sort}: give the {sort} a new name"
            )
        return found

    async def _given(self, key: Key, sort: str, hashed: str | None = None) -> StoredStep | None:
        """As :meth:`stored`. What has ended comes at its turn."""
        stored = await self.stored(key, sort)
        if stored is not None:
            if None not in (stored.arguments, hashed) and stored.arguments != hashed:
                raise StepMismatchError(
                    f"step {key} was stored for other arguments than it is now called with: give each step of a loop"
                    " a key= or a name of its own; give the step a new name if the code changed its arguments; put"
                    " arguments that may differ between attempts into a lambda"
                )
            if stored.cut:
                await self.flow.cut(key)
            if stored.ended:
                await self.flow.give(key)
        return stored

    @contextmanager
    def _asking(self, key: Key, sort: str, hashed: str | None = None) -> Iterator[None]:
        """Keep the handler from being suspended for the length of the block, and note how what it asks for ends."""
        began = time.perf_counter()
        with self.flow.busy():
            try:
                yield
            except StepError:
                self._end(key)
                raise
            except asyncio.CancelledError:
                if not self.flow.over and not key.name.startswith(UNDO):
                    self._end(key)
                    if not self.past.has_ended(key):
                        self._ends.append(End(key, sort, hashed, began, cut=True))
                raise
            self._end(key)

    def _end(self, key: Key) -> None:
        self.past.end(key)
        if not key.name.startswith(UNDO):
            self.flow.latest = key

    async def patched(self, name: str) -> bool:
        """See :meth:`Context.patched`."""
        key = Key(f"{PATCH}{name}", 1)
        self._check(key.name)
        async with self._patching:
            if key not in self._patches:
                with self.flow.busy():
                    self._patches[key] = await self._decide(key)
        return self._patches[key]

    async def _decide(self, key: Key) -> bool:
        stored = await self.past.all()
        if key in stored:
            return stored[key].result == "true"
        new = not self.past.unasked()
        if self.note_version is not None:
            await self.note_version()
        await self.finalize()
        async with self.flow.giving():
            await self._store(key, None, json.dumps(new), [], time.perf_counter())
        return new

    async def sleep(self, pause: Pause, name: str, *, blocking: bool) -> None:
        """See :meth:`Context.sleep`."""
        seconds = duration(pause).total_seconds()
        key = self.key(name)
        with self._asking(key, "sleep"):
            stored = await self._given(key, "sleep")
            if stored is not None and stored.ended:
                return
            await self.finalize()
            await self.flow.wait(Wait("sleep", key.name, key.nth, seconds, blocking))
            async with self.flow.giving():
                end = key.name, key.nth, self.past.in_order(key)
                await self.fence.send(self.fence.engine.end_sleep, *end)
            self.progressed = True

    async def signal(self, name: str, timeout: Pause | None, *, blocking: bool) -> Signal | None:
        """Return the next signal of a name, or suspend the handler until it comes; ``None`` past the timeout."""
        seconds = None if timeout is None else duration(timeout).total_seconds()
        key, began = self.key(name), time.perf_counter()

        async def take() -> tuple[str, str | None]:
            left = None if seconds is None else max(seconds - (time.perf_counter() - began), 0.0)
            return await self.fence.send(self.fence.engine.take_signal, key.name, key.nth, left)

        return await self.take(key, take, seconds, blocking=blocking)

    async def take(
        self, key: Key, take: Take, seconds: float | None = None, hashed: str | None = None, *, blocking: bool
    ) -> Signal | None:
        """Return the signal that ``take`` gets, or that is stored, or suspend the handler until it comes."""
        with self._asking(key, "wait", hashed):
            stored = await self._given(key, "wait", hashed)
            if stored is not None and stored.ended:
                return signal_of(stored.result)
            await self._stop()
            await self.flow.turn(key)
            await self.finalize()
            while True:
                async with self.flow.giving():
                    answer, text = await take()
                if answer != "pending":
                    break
                # A new wait for a child is stored already.
                self.progressed = self.progressed or (stored is None and hashed is not None)
                await self.flow.wait(Wait("wait", key.name, key.nth, seconds, blocking))
            self.progressed = True
            return signal_of(text)

    async def _store(
        self,
        key: Key,
        hashed: str | None,
        text: str | None,
        errors: Errors,
        began: float,
        *,
        final: bool = False,
    ) -> None:
        async with self._storing:  # what was cut off before ended before
            for end in [end for end in self._ends if end.cut and not self.flow.over]:
                await self._store_end(end)
        took, in_order = timedelta(seconds=time.perf_counter() - began), self.past.in_order(key)
        step = key.name, key.nth, hashed, text, json.dumps(errors), took, final, in_order
        await self.fence.send(self.fence.engine.store_step, *step)
        self.progressed = self.progressed or text is not None


_INSIDE: contextvars.ContextVar[str | None] = contextvars.ContextVar("step", default=None)
"""The step that runs."""


def inside_step() -> bool:
    """Return whether the caller is the function of a step."""
    return _INSIDE.get() is not None


def _error(key: Key, record: Mapping[str, Any]) -> StepError:
    return StepError(str(key), record["type"], record["message"], record.get("where"))
