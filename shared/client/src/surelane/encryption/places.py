"""The places for which values are sealed: an event, and what of it. It needs no cipher, so every queue imports it."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

RESULT, ERROR, ANSWER, SAID = "result", "error", "answer", "said"
"""What of an event stands in a place: its handler's result, its attempts' errors, its answer to Slack, what it says."""
PROGRESS = ("progress", 0)
"""The step that holds an event's progress: its name and number. The numbers of a handler's own steps begin with 1."""
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is stored: an event, and what of it. ``None``: the writer knows no event, so any may take it.

    ``rerun_of``: the events that it runs again. It has some of their steps and signals.
    """

    event: int | None
    what: str
    rerun_of: Collection[int] = ()

    def digest(self) -> bytes:
        return _digest(self.event, self.what)

    def takes(self, digest: bytes) -> bool:
        """Return whether a value with this digest may stand here."""
        return digest == self.digest() or any(
            digest == _digest(event, self.what) for event in (None, *self.rerun_of)
        )


def step_place(event: int, name: str, nth: int, part: str = "step") -> Place:
    """Return the place of a step's result, or of another ``part`` of it."""
    return Place(event, f"{part} {nth} {name}")


def signal_place(event: int | None, name: str) -> Place:
    """Return the place of a signal's value, and of the result of the wait that takes it."""
    return Place(event, f"signal {name}")


def tag_place(event: int, name: str) -> Place:
    """Return the place of a tag's value."""
    return Place(event, f"tag {name}")


def _digest(event: int | None, what: str) -> bytes:
    return hashlib.sha256(f"{event} {what}".encode(errors="replace")).digest()[:DIGEST_BYTES]
