"""Kill the worker at a point that a test names."""

import asyncio
import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from surelane.calls import Pool
from surelane.codec import Codec
from surelane_service.engine import Engine, Item, Settled
from surelane_worker import Call, Context, Given

POINTS = ("start", "end", "step NAME", "in step NAME", "wait NAME")


class Crashes:
    """The points that handlers reach, and the one at which the worker is killed."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self.tracebacks: dict[int, str] = {}
        """Of the last attempt at each event that failed."""
        self._at: str | None = None
        self._reached: list[str] = []

    async def reach(self, point: str) -> None:
        """Say that a handler is at a point. This never returns if the worker is killed there."""
        if point not in self._reached:
            self._reached.append(point)
        if point == self._at:
            self._at = None
            self._kill()
            await asyncio.Future()  # cancelled as the worker's work is

    async def around(self, given: Given, context: Context, call: Call) -> object:
        """Go around each handler: keep its traceback, and kill the worker where a test wants it."""
        await self.reach("start")
        try:
            result = await call(given, context)
        except Exception:
            text = traceback.format_exc()
            self.tracebacks |= {event.id: text for event in (given if isinstance(given, list) else [given])}
            raise
        await self.reach("end")
        return result

    def engine(self, pool: Pool, codec: Codec) -> Engine:
        """Return the calls of a worker that may be killed around each step."""
        return _Engine(pool, codec, self)

    @contextmanager
    def at(self, point: str) -> Iterator[None]:
        """Kill the worker where a handler first reaches ``point`` in the block, as :meth:`Bot.killed_at` says."""
        if point not in POINTS[:2] and not point.startswith(("step ", "in step ", "wait ")):
            raise ValueError(f"{point!r} is no point; they are {', '.join(POINTS)}")
        self._at, self._reached = point, []
        try:
            yield
            missed = self._at is not None
        finally:
            self._at = None
        if missed:
            reached = ", ".join(self._reached) or "none"
            told = f"the worker was not killed at {point!r}; points that were reached: {reached}"
            raise AssertionError(told)


class _Engine(Engine):
    """A worker's calls, with a point before and after each step is stored, and after a handler is suspended."""

    def __init__(self, pool: Pool, codec: Codec, crashes: Crashes) -> None:
        super().__init__(pool, codec)
        self._crashes = crashes

    async def store_step(self, identity: int, claim: int, name: str, nth: int, *rest: Any) -> Settled:  # noqa: ANN401
        step = _label(name, nth)
        await self._crashes.reach(f"in step {step}")
        answer = await super().store_step(identity, claim, name, nth, *rest)
        await self._crashes.reach(f"step {step}")
        return answer

    async def settle(self, items: Sequence[Item], within: float | None = None) -> list[Settled]:
        answers = await super().settle(items, within)
        for _, _, outcome, argument in items:
            if outcome == "suspend" and argument is not None:
                for wait in json.loads(argument)["waits"]:
                    await self._crashes.reach(f"wait {_label(wait['name'], wait['nth'])}")
        return answers


def _label(name: str, nth: int) -> str:
    return name if nth == 1 else f"{name} ({nth})"
