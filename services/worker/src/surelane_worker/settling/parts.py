"""Batches that are slow are sent in parts, so that one event that cannot be reached holds back no other."""

from collections.abc import Sequence
from math import isqrt
from typing import TypeVar

Item = TypeVar("Item")

SLOW = (TimeoutError,)
"""Raised for a batch that took too long: the client gave up on it."""


FEW = 32


def parts_of(batch: Sequence[Item]) -> list[Sequence[Item]]:
    """A batch in parts of the root of its size; a small one item by item."""
    size = isqrt(len(batch)) if len(batch) > FEW else 1
    return [batch[start : start + size] for start in range(0, len(batch), size)]
