"""Each fault of tests/mutants is a change of today's sources."""

import ast

import pytest

from tests.mutants.table import MUTANTS
from tests.mutants.tree import changed


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_can_be_put_in(name: str) -> None:
    for file, text in changed(MUTANTS[name]).items():
        if file.endswith(".py"):
            ast.parse(text)
