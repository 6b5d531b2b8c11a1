"""A slow batch is sent again in parts, so that one event which cannot be reached delays no other."""

from collections.abc import Sequence
from math import isqrt
from typing import TypeVar

from surelane.errors import OutcomeUnknown

Item = TypeVar("Item")

FEW = 32
GIVEN_UP = ("55P03", "57014")
"""SQLSTATEs of a server that gave up on a statement: lock_not_available and query_canceled."""


def is_slow(error: BaseException) -> bool:
    """Return whether a call failed because it took too long, by the client's clock or by the server's."""
    cause = error.__cause__
    return (
        isinstance(error, TimeoutError)
        or (isinstance(error, OutcomeUnknown) and isinstance(cause, TimeoutError))
        or getattr(cause, "sqlstate", None) in GIVEN_UP
    )


def parts_of(batch: Sequence[Item]) -> list[Sequence[Item]]:
    """Split a batch into parts as long as the root of its length; a small one into single items."""
    size = isqrt(len(batch)) if len(batch) > FEW else 1
    return [batch[start : start + size] for start in range(0, len(batch), size)]
