"""Kill the worker at a point that a test names."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from surelane_service.engine import Engine

POINTS = ("start", "end", "step NAME", "in step NAME")


class Crashes:
    """The points that handlers reach, and the one at which the worker is killed."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
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

    @contextmanager
    def at(self, point: str) -> Iterator[None]:
        """Kill the worker where a handler first reaches ``point`` in the block.

        Raises:
            ValueError: there is no such kind of point.
            AssertionError: no handler reached it.
        """
        if point not in POINTS[:2] and not point.startswith(("step ", "in step ")):
            raise ValueError(f"{point!r} is no point; they are {', '.join(POINTS)}")
        self._at, self._reached = point, []
        store = Engine.store_step

        async def storing(
            engine: Engine,
            identity: int,
            claim: int,
            name: str,
            nth: int,
            *rest: Any,  # noqa: ANN401 - as above
        ) -> Any:  # noqa: ANN401 - as above
            step = name if nth == 1 else f"{name} ({nth})"
            await self.reach(f"in step {step}")
            answer = await store(engine, identity, claim, name, nth, *rest)
            await self.reach(f"step {step}")
            return answer

        try:
            with mock.patch.object(Engine, "store_step", storing):
                yield
            missed = self._at is not None
        finally:
            self._at = None
        if missed:
            reached = ", ".join(self._reached) or "none"
            raise AssertionError(
                f"the worker was not killed at {point!r}; points that were reached: {reached}"
            )
