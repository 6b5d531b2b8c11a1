"""Overlapping transactions do to the queue what they do one after another, in some order."""

from itertools import combinations_with_replacement

import pytest

from tests.databases import Server
from tests.interleavings.calls import CALLS, CORE
from tests.interleavings.stepping import stand

PARTS = 8


def test_pairs_of_the_calls_that_matter_most_are_serial(server: Server, database: str) -> None:
    with stand(server, database) as queue:
        wrong = [each for pair in combinations_with_replacement(CORE, 2) for each in queue.wrong(pair)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.interleavings
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_all_pairs_of_calls_are_serial(server: Server, database: str, part: int) -> None:
    with stand(server, database) as queue:
        pairs = list(combinations_with_replacement(CALLS, 2))[part::PARTS]
        wrong = [each for pair in pairs for each in queue.wrong(pair)]
    assert not wrong, "\n".join(wrong)
