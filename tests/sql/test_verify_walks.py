"""``surelane verify`` finds nothing in what random histories of the queue's functions leave, locked rows included."""

import pytest

from surelane_operator.doctor import Level, invariants
from tests.sql.durable_machine import DurableMachine
from tests.sql.machine import Machine
from tests.sql.test_model import connected, walk_from


@pytest.mark.parametrize("seed", range(12))
def test_no_history_has_a_finding(database: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "AGAIN", 0.0)
    with connected(database) as (queue, other, run):
        walk_from(seed, queue, other, run, (Machine, DurableMachine)[seed % 2])
        found = [each for check in invariants.CHECKS for each in run(invariants.look(queue, check, 1000))]
    assert [each for each in found if each.level is not Level.OK] == []
