"""Overlapping transactions do to the queue what they do one after another, in some order."""

from collections.abc import Iterable
from itertools import combinations_with_replacement

import pytest

from tests.databases import Server
from tests.interleavings.calls import CALLS, CORE, EXCEPTIONS
from tests.interleavings.stepping import stand

PARTS = 8
NEW_PROCESS = "open_session"
"""It steps over locked claims of its predecessor, which the process releases later. So it is no part of the pairs."""


def not_serial(server: Server, database: str, calls: Iterable[tuple[str, ...]]) -> str:
    with stand(server, database, sessions=3) as queue:
        return "\n".join(each for names in calls if names not in EXCEPTIONS for each in queue.wrong(names))


def test_pairs_of_the_calls_that_matter_most_are_serial(server: Server, database: str) -> None:
    assert not not_serial(server, database, combinations_with_replacement(CORE, 2))


def test_three_transactions_at_once_are_serial(server: Server, database: str) -> None:
    assert not not_serial(server, database, [("enqueue", "claim_events", "complete g1")])


@pytest.mark.interleavings
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_all_pairs_of_calls_are_serial(server: Server, database: str, part: int) -> None:
    calls = [name for name in CALLS if name != NEW_PROCESS]
    assert not not_serial(server, database, list(combinations_with_replacement(calls, 2))[part::PARTS])


def test_what_is_not_serial_is_found(server: Server, database: str) -> None:
    """The exceptions are such pairs."""
    with stand(server, database) as queue:
        assert all(queue.wrong(names) for names in EXCEPTIONS)
