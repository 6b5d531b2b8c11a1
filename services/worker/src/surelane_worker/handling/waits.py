"""Suspend a handler until a time comes, or a value is sent to its event.

A suspended event holds no claim, no slot and no memory. When its wait ends, the handler runs again from its top, on any
worker, and gets the stored results of its steps.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from surelane_service.engine import Settled
from surelane_worker.handling.outcomes import Pause, Suspend, Wait, duration
from surelane_worker.handling.steps import FIRST_PAUSE, LONGEST_PAUSE, Key, Steps, Suspended
from surelane_worker.slack.notes import ClaimLostError

TURNS = 20
"""Turns of the event loop in which other tasks of the handler may begin a step before it is suspended."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A value that was sent to an event.

    Attributes:
        value: the value.
        at: when it was sent.
        by: who sent it.
    """

    value: Any
    at: datetime
    by: str


class Waits:
    """The sleeps and waits of one attempt."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self._pending: dict[Key, Wait] = {}

    @property
    def suspend(self) -> Suspend | None:
        """The outcome of a handler that is suspended; ``None`` if it is not."""
        return Suspend(tuple(self._pending.values())) if self.steps.suspended else None

    async def sleep(self, pause: Pause, name: str, *, blocking: bool) -> None:
        """Suspend the handler for a time; see :meth:`Context.sleep`."""
        seconds = duration(pause).total_seconds()
        key = self.steps.key(name)
        stored = await self.steps.stored(key, "sleep")
        if stored is None or not stored.done:
            await self._suspend(key, Wait("sleep", key.name, key.nth, seconds, blocking))

    async def signal(self, name: str, timeout: Pause | None, *, blocking: bool) -> Signal | None:
        """Return the next signal of a name, or suspend the handler until it comes; ``None`` past the timeout."""
        seconds = None if timeout is None else duration(timeout).total_seconds()
        key = self.steps.key(name)
        stored = await self.steps.stored(key, "wait")
        if stored is not None and stored.done:
            return _signal(stored.result)
        taken = await self._take(key, seconds)
        if isinstance(taken, str) or taken is None:
            return _signal(taken)
        return await self._suspend(key, Wait("wait", key.name, key.nth, seconds, blocking))

    async def _take(self, key: Key, seconds: float | None) -> "str | Pending | None":
        """Return a signal as JSON text, ``None`` past the timeout, or ``PENDING`` while no signal has come."""
        event, pause = self.steps.event, FIRST_PAUSE
        while True:
            answer, text = await self.steps.patiently(
                lambda: self.steps.engine.take_signal(event.id, event.claim, key.name, key.nth, seconds)
            )
            if answer == "pending":
                return PENDING
            if answer == Settled.DONE:
                return None if text is None else str(text)
            if answer == Settled.STALE:
                raise ClaimLostError
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _suspend(self, key: Key, wait: Wait) -> NoReturn:
        """Suspend the handler once none of its steps runs."""
        self._pending[key] = wait
        try:
            while not self.steps.suspended and await self._goes_on():
                pass
        except asyncio.CancelledError:
            if not self.steps.suspended:  # only this wait was cancelled, such as by a timeout around it
                del self._pending[key]
            raise
        self.steps.suspended = True
        raise Suspended

    async def _goes_on(self) -> bool:
        """Wait while a step runs. Return whether one ran."""
        for _ in range(TURNS):
            if self.steps.running:
                self.steps.ran.clear()
                await self.steps.ran.wait()
                return True
            await asyncio.sleep(0)
        return False


class Pending:
    """Says that no signal has come yet."""


PENDING = Pending()


def _signal(text: str | None) -> Signal | None:
    if text is None:
        return None
    found: Mapping[str, Any] = json.loads(text)
    return Signal(found["value"], datetime.fromisoformat(found["at"]), found["by"])
