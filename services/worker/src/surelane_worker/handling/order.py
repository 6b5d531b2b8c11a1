"""Notice that a handler's code has changed under a run, before a step is repeated.

It counts what the handler's own task asks for, one after the other. Other tasks may ask in another order in each run.
"""

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from surelane_service.engine import StoredStep
from surelane_worker.handling.flow import Key
from surelane_worker.handling.shapes import StepMismatchError


class Order:
    """The order in which the handler's own task asks for steps and waits."""

    def __init__(self, own: AbstractSet[asyncio.Task[Any] | None]) -> None:
        """``own`` has that task; of a synchronous handler those of the calls in its own thread."""
        self._own = own
        self._in_order = set[Key]()
        self._ahead = set[Key]()
        """What earlier attempts did in order, and the handler has not asked for yet."""
        self._open: Key | None = None
        """What was asked for and has not ended, such as a step that a timeout of the handler cut off."""

    def __contains__(self, key: Key) -> bool:
        """Return whether this was asked for in order: once all before it had ended."""
        return key in self._in_order

    def read(self, stored: Mapping[Key, StoredStep]) -> None:
        """Take what earlier attempts stored."""
        self._ahead = {
            key for key, step in stored.items() if step.in_order and (step.ended or step.sort == "wait")
        }

    def ask(self, key: Key, *, new: bool) -> None:
        """Note that the current task asks for a step or a wait.

        Raises:
            StepMismatchError: it is ``new``, although the run was past this point.
        """
        self._ahead.discard(key)
        if asyncio.current_task() not in self._own:
            return
        if self._open is None:
            self._open = key
            self._in_order.add(key)
        if new and self._ahead:
            raise StepMismatchError(
                f"{key} is new, but this run has stored {min(map(str, self._ahead))}, which comes later or is gone:"
                " nothing was repeated; if a step was renamed, added or removed, name the handler's version, or ask"
                " ctx.patched"
            )

    def end(self, key: Key) -> None:
        """Note that a step or a wait has ended: later attempts find its end."""
        if self._open == key:
            self._open = None
