"""The queue's SQL does what a model in plain Python does, step by step, by a clock that the test sets.

``surelane verify`` has no finding in what such histories leave.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random, SystemRandom
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_operator.doctor import Level, invariants
from tests.sql.durable_machine import DurableMachine
from tests.sql.machine import Machine

CLOCK = """
create table agent.test_clock (at timestamptz not null);
insert into agent.test_clock values ('2024-01-01 00:00:00+00');
create or replace function agent.clock() returns timestamptz language sql volatile parallel safe
return (select at from agent.test_clock);
"""


@contextmanager
def connected(database: str) -> Iterator[tuple[Connection, Connection, Callable[[Any], Any]]]:
    """Open two connections in an event loop of their own, for a test that is no coroutine."""
    with asyncio.Runner() as runner:
        queue, other = [runner.run(asyncpg.connect(database)) for _ in range(2)]
        runner.run(queue.execute(CLOCK))
        try:
            yield queue, other, runner.run
        finally:
            for connection in (other, queue):
                runner.run(connection.close())


@pytest.fixture(autouse=True)
def _look_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """``surelane verify`` looks again at what it finds, a moment later: here nothing changes meanwhile."""
    monkeypatch.setattr(invariants, "AGAIN", 0.0)


CHECKS = [check for check in invariants.CHECKS if check.name != "unknown claims"]
"""The machines claim under names of workers that nothing lists."""

MACHINES = pytest.mark.parametrize("sort", [Machine, DurableMachine])


@MACHINES
def test_random_histories_agree_with_the_model(database: str, sort: type[Machine]) -> None:
    """They are the same in every run."""
    walk_all(database, sort, range(3, 6))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@MACHINES
def test_many_random_histories_agree_with_the_model(database: str, sort: type[Machine]) -> None:
    walk_all(database, sort, range(6, 70))


@pytest.mark.soak
@pytest.mark.timeout(1000)
@MACHINES
def test_ever_other_random_histories_agree_with_the_model(database: str, sort: type[Machine]) -> None:
    walk_all(database, sort, seeds(time.monotonic() + float(os.environ.get("SURELANE_SOAK_SECONDS", "5"))))


def seeds(end: float) -> Iterator[int]:
    while time.monotonic() < end:
        yield SystemRandom().randrange(2**32)


def walk_all(database: str, sort: type[Machine], seeds: Iterable[int]) -> None:
    """Walk from each seed. A failure names it."""
    with connected(database) as (queue, other, run):
        for seed in seeds:
            try:
                machine = sort(queue, other, run)
                machine.walk(Random(seed), 80)
                machine.rescue()
            except Exception as error:
                raise AssertionError(f"a walk with seed {seed} went wrong: {error}") from error
            found = [each for check in CHECKS for each in run(invariants.look(queue, check, 1000))]
            assert [each for each in found if each.level is not Level.OK] == [], f"after seed {seed}"


def test_rare_histories_of_durable_handlers_agree_with_the_model(database: str) -> None:
    """Tags of an event that runs again; children that end beside a parent in history, or are cancelled."""
    with connected(database) as connections:
        machine = DurableMachine(*connections)
        parent(machine)
        for name, value in (("a", "x"), ("a", None), ("b", "y")):
            machine.tag_an_event(0, True, name, value)
        machine.settle_a_claim(0, True, "complete", 0)
        machine.requeue_an_ended_event(0)
        machine.both_are_the_same()
        for cancelled in (False, True):
            machine = DurableMachine(*connections)
            parent(machine)
            machine.run_a_child(0, True, "a")
            if cancelled:
                machine.cancel_an_event(1)
                machine.run_a_child(0, True, "a")
            machine.settle_a_claim(0, True, "fail", 0)
            if not cancelled:
                machine.claim_something("ours")
                machine.settle_a_claim(0, True, "complete", 0)
            machine.requeue_an_ended_event(0)
            machine.both_are_the_same()
            machine.claim_something("ours")
            machine.run_a_child(0, True, "a")
            machine.both_are_the_same()


def parent(machine: DurableMachine) -> None:
    """Claim an event that has one attempt."""
    machine.enqueue_a_job("slack.calm", None, None, None, 0, 1)
    machine.claim_something("ours")
