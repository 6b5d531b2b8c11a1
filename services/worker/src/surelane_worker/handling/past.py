"""Know what earlier attempts of an event stored, and how far this attempt has come through it.

So a handler whose code has changed under a run is noticed before a step is repeated. What the handler's own task asks
for counts, one after the other. Other tasks may ask in another order in each run.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from surelane.json_text import read_json
from surelane_service.durable import StoredStep
from surelane_worker.handling.fence import Fence
from surelane_worker.handling.flow import Key
from surelane_worker.handling.shapes import StepMismatchError

Tasks = AbstractSet[asyncio.Task[Any] | None]

UNDO = "undo "
"""What stands before the name of an undo."""
LARGE = 100_000
"""Bytes of a step's result, above which it is read only once the handler asks for it."""
PATCH = "patched "
"""Begins the names under which answers of ``ctx.patched`` are stored. They have no place among the steps."""


class Past:
    """What earlier attempts stored. One statement reads it, when the handler comes to its first step."""

    def __init__(self, fence: Fence, own: Tasks, placed: Callable[[Mapping[Key, bool]], None]) -> None:
        """``own``: the handler's own tasks. ``placed`` takes what has ended, in order, and whether it is theirs."""
        self._fence, self._own, self._placed = fence, own, placed
        self._reading = asyncio.Lock()
        self._stored: Mapping[Key, StoredStep] | None = None
        self._ahead: dict[Key, StoredStep] = {}
        """What this attempt has not asked for yet."""
        self._in_order = set[Key]()
        self._open: Key | None = None
        """What was asked for and has not ended, such as a step that a timeout of the handler cut off."""

    async def all(self) -> Mapping[Key, StoredStep]:
        if self._stored is None:
            async with self._reading:
                if self._stored is None:
                    self._stored = await self._read()
                    self._ahead = dict(self._stored)
                    self._placed(dict(self._in_places()))
        return self._stored

    def _in_places(self) -> Iterator[tuple[Key, bool]]:
        """Yield what has ended, in order, and the replies between: each one's key, and if it is the own task's."""
        noted = self._fence.event.notes
        after = defaultdict[Key | None, list[Key]](list)
        for ordinal, past in (json.loads(noted).get("past", {}) if noted else {}).items():
            after[Key(*past) if past else None].append(reply_key(ordinal))
        yield from ((reply, True) for reply in after[None])
        for key, step in (self._stored or {}).items():
            if _has_place(key, step):
                yield key, step.in_order
                yield from ((reply, True) for reply in after[key])

    async def _read(self) -> Mapping[Key, StoredStep]:
        # The first claim finds steps where the event runs another one again, and notes say so.
        event, engine = self._fence.event, self._fence.engine
        if event.claim == 1 and event.notes is None:
            return {}
        steps = await self._fence.patiently(engine.read_steps, event.id, LARGE)
        if any(step.sort == "sleep" and step.done and step.result == "false" for step in steps):
            await self._fence.send(engine.end_sleeps)
            steps = await self._fence.patiently(engine.read_steps, event.id, LARGE)
        return {Key(step.name, step.nth): step for step in steps}

    async def get(self, key: Key) -> StoredStep | None:
        """Return what is stored under a key that is asked for."""
        found = (await self.all()).get(key)
        self._ahead.pop(key, None)
        return found

    async def result(self, key: Key) -> str:
        """Return the stored result of a step that has one, as JSON text. A large one is read now, each time."""
        found = (await self.all())[key].result
        if found is not None:
            return found
        return await self._fence.patiently(
            self._fence.engine.step_result, self._fence.event.id, key.name, key.nth
        )

    def ask(self, key: Key, *, new: bool) -> None:
        """Note that the current task asks for a step or a wait. Refuse a ``new`` one if the run was past this point."""
        if asyncio.current_task() not in self._own:
            return
        if self._open is None:
            self._open = key
            self._in_order.add(key)
        later = [str(key) for key, step in self._ahead.items() if _is_passed(step)] if new else []
        if later:
            raise StepMismatchError(
                f"{key} is new, but this run has stored {min(later)}, which comes later or is gone: nothing was"
                " repeated; if a step was renamed, added or removed, name the handler's version, or ask ctx.patched"
            )

    def end(self, key: Key) -> None:
        """Note that a step or a wait has ended: later attempts find its end."""
        if self._open == key:
            self._open = None

    def has_ended(self, key: Key) -> bool:
        """Return whether an earlier attempt stored the end of what was asked for."""
        found = None if self._stored is None else self._stored.get(key)
        return found is not None and found.ended

    def in_order(self, key: Key) -> bool:
        """Return whether the handler's own task asked for this once all that it had asked for before had ended."""
        return key in self._in_order

    def is_over(self) -> bool:
        """Return whether the attempt has come to all results and undos."""
        ahead = self._ahead.items()
        return not any(_has_place(key, step) or key.name.startswith(UNDO) for key, step in ahead)

    def unasked(self) -> list[str]:
        """Return the steps that this attempt has not asked for."""
        return sorted(str(key) for key in self._ahead if not key.name.startswith(PATCH))

    def lost_undos(self) -> list[str]:
        """Return the undos that have not run, and that this attempt has not come to."""
        ahead = self._ahead.items()
        return [str(key) for key, step in ahead if key.name.startswith(UNDO) and not step.ended]


def reply_key(ordinal: object) -> Key:
    """Return the key of a reply among the steps. No step has the number 0."""
    return Key(f"reply {ordinal}", 0)


def _has_place(key: Key, step: StoredStep) -> bool:
    return step.ended and not key.name.startswith(PATCH)


def _is_passed(step: StoredStep) -> bool:
    """Return whether an earlier attempt's own task has passed this step, or waits there."""
    return step.in_order and (step.ended or step.sort == "wait")


@dataclass(frozen=True, slots=True)
class Signal:
    """A value that was sent to an event: the value, when, and by whom."""

    value: Any
    at: datetime
    by: str


@dataclass(frozen=True, slots=True)
class End:
    """A step or a wait that failed in this attempt, or was cut off, and may still end the attempt."""

    key: Key
    sort: str
    arguments: str | None
    began: float
    cut: bool


def signal_of(text: str | None) -> Signal | None:
    """Return the signal that a wait has, from its JSON text."""
    if text is None:
        return None
    found: Mapping[str, Any] = read_json(text)
    return Signal(found["value"], datetime.fromisoformat(found["at"]), found["by"])
