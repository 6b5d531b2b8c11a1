"""Overlapping transactions do to the queue what they do one after another, in some order."""

from collections.abc import Iterable
from itertools import combinations_with_replacement

import pytest

from tests.databases import Server
from tests.interleavings.calls import CALLS, CORE, EXCEPTIONS, IDLE
from tests.interleavings.stepping import stand

pytestmark = pytest.mark.timeout(1200)

PARTS = 8
NEW_PROCESS = "open_session"
"""It steps over locked claims of its predecessor, which the process releases later. So it is no part of the pairs."""
PAIRS = list(combinations_with_replacement([name for name in CALLS if name != NEW_PROCESS], 2))


def not_serial(server: Server, database: str, calls: Iterable[tuple[str, ...]]) -> str:
    with stand(server, database, sessions=3) as queue:
        return "\n".join(each for names in calls if names not in EXCEPTIONS for each in queue.wrong(names))


@pytest.mark.parametrize("calls", [CORE, IDLE], ids=["those that matter most", "at idle groups"])
def test_pairs_of_calls_are_serial(server: Server, database: str, calls: Iterable[str]) -> None:
    assert not not_serial(server, database, combinations_with_replacement(calls, 2))


@pytest.mark.parametrize(
    "calls",
    [
        ("enqueue", "claim_events", "complete g1"),
        ("enqueue v", "enqueue v", "delete v1"),
        ("enqueue v", "delete v1", "claim"),
    ],
)
def test_three_transactions_at_once_are_serial(server: Server, database: str, calls: tuple[str, ...]) -> None:
    assert not not_serial(server, database, [calls])


@pytest.mark.interleavings
@pytest.mark.parametrize("part", range(PARTS))
def test_all_pairs_of_calls_are_serial(server: Server, database: str, part: int) -> None:
    assert not not_serial(server, database, PAIRS[part::PARTS])


def test_what_is_not_serial_is_found(server: Server, database: str) -> None:
    """The exceptions are such pairs."""
    with stand(server, database) as queue:
        assert all(queue.wrong(names) for names in EXCEPTIONS)
