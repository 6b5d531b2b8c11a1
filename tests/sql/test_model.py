"""The queue's SQL does what a model in plain Python does, step by step, by a clock that the test sets."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random, SystemRandom
from typing import Any, cast

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from surelane.calls import Connection
from tests.sql.durable_machine import NAMES, DurableMachine
from tests.sql.machine import KINDS, Machine
from tests.sql.model import LEASE

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


@pytest.mark.parametrize(("machine", "examples"), [(Machine, 25), (DurableMachine, 8)])
def test_the_queue_does_what_its_model_does(database: str, machine: type[Machine], examples: int) -> None:
    """Hypothesis reduces a short history that fails to its shortest form."""
    with connected(database) as connections:
        run_state_machine_as_test(
            cast("type[Machine]", partial(machine, *connections)),  # any factory will do
            settings=settings(
                max_examples=examples,
                stateful_step_count=30,
                deadline=None,
                database=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            ),
        )


def slack_event(chance: Random) -> tuple[int, str, str | None]:
    """Return one of the events of the batches."""
    return (
        chance.randrange(10),
        chance.choice(KINDS),
        chance.choice(["g", "h", None]),
    )


def disturb(machine: Machine, chance: Random, number: int, pause: int, *, by_hand: bool) -> None:
    """Do a step of an operator or a sweep."""
    if by_hand:
        what = chance.choice(["delete", "cancel", "cancel", "reschedule", "requeue", "pause", "pause twice"])
        machine.intervene(what, number, pause)
    else:
        machine.maintain(chance.random() < 0.5)


def walk(machine: Machine, chance: Random, steps: int) -> None:
    """Take random steps in longer histories than Hypothesis tries."""
    for _ in range(steps):
        if isinstance(machine, DurableMachine) and chance.random() < 0.65:
            handle(machine, chance, chance.choice([0, 0, 0, 1, chance.randrange(10_000)]))
        else:
            step(machine, chance)
        machine.both_are_the_same()


def step(machine: Machine, chance: Random) -> None:
    """Take a random step, mostly a claim or a settle."""
    number, pause = chance.randrange(10_000), chance.choice([0, 0, 1, 400, 4000])
    kind, group = (
        chance.choice(KINDS),
        chance.choice(["g", "g", "g", "h", None]),
    )
    match chance.choices(range(10), weights=[3, 3, 2, 5, 10, 3, 2, 1, 2, 2])[0]:
        case 0:
            machine.insert_a_slack_event(number % 10, kind, group)
        case 1:
            key, dedupe, attempts = (
                chance.choice("ij"),
                chance.choice([None, "i"]),
                chance.choice([None, 1, 2]),
            )
            machine.enqueue_a_job(
                kind, group, chance.choice([None, key]), dedupe, pause, attempts, chance.randrange(4)
            )
        case 2:
            machine.let_time_pass(chance.choice([1, 200, LEASE, 4000]))
        case 3:
            machine.claim_something(chance.choice(["all", "ours", "theirs", "single", "lost"]))
        case 4:
            how = chance.choice(["complete", "fail", "fail", "release", "snooze", "extend"])
            machine.settle_a_claim(number, chance.random() < 0.8, how, pause)
        case 5 | 6 as which:
            disturb(machine, chance, number, pause, by_hand=which == 5)
        case 7:
            machine.insert_a_batch_of_slack_events([slack_event(chance) for _ in range(6)])
        case 8:
            machine.fill_a_group()
        case _:
            how = chance.choice(["claim", "single", "complete", "fail", "release", "snooze", "extend"])
            machine.step_beside_an_open_insert(number, kind, chance.choice("gh"), chance.random() < 0.5, how)


def test_long_random_histories_agree_with_the_model(database: str) -> None:
    """They are the same in every run."""
    with connected(database) as connections:
        for seed in range(25):
            walk_from(seed, *connections)


def test_long_random_histories_of_durable_handlers_agree_with_the_model(database: str) -> None:
    with connected(database) as connections:
        for seed in range(20):
            walk_from(seed, *connections, DurableMachine)


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


@pytest.mark.soak
@pytest.mark.timeout(1000)
def test_ever_other_random_histories_agree_with_the_model(database: str) -> None:
    end = time.monotonic() + float(os.environ.get("SURELANE_SOAK_SECONDS", "5"))
    with connected(database) as connections:
        while time.monotonic() < end:
            machine = (Machine, DurableMachine)[SystemRandom().randrange(2)]
            walk_from(SystemRandom().randrange(2**32), *connections, machine)


def walk_from(
    seed: int,
    queue: Connection,
    other: Connection,
    run: Callable[[Any], Any],
    sort: type[Machine] = Machine,
) -> None:
    """Walk from a seed. A failure names the seed."""
    try:
        walk(sort(queue, other, run), Random(seed), 80 if sort is DurableMachine else 60)
    except Exception as error:
        raise AssertionError(f"a walk with seed {seed} went wrong: {error}") from error


def handle(machine: DurableMachine, chance: Random, number: int) -> None:
    """Do what a durable handler does, or what others do to one."""
    name, stands = chance.choice(NAMES), chance.random() < 0.8
    match chance.choices(range(9), weights=[2, 2, 5, 5, 5, 2, 4, 1, 2])[0]:
        case 0:
            machine.store_a_step(number, stands, name, chance.random() < 0.3)
        case 1:
            machine.tag_an_event(number, stands, name, chance.choice([None, "x", "y"]))
        case 2:
            sorts = ["sleep", "wait", "wait", "step", "child", "child"]
            waits = [
                (
                    chance.choice(sorts),
                    chance.choice(NAMES),
                    chance.choice([1, 400, 4000]),
                    chance.random() < 0.5,
                )
                for _ in range(chance.randrange(1, 4))
            ]
            machine.suspend_a_handler(number, stands, waits, chance.random() < 0.3)
        case 3:
            machine.send_a_signal(number, name)
        case 4:
            machine.take_a_signal(
                number, stands, name, chance.randrange(1, 3), chance.choice([None, 1, 4000])
            )
        case 5:
            machine.end_sleeps(number, stands)
        case 6:
            machine.run_a_child(number, stands, name)
        case 7:
            machine.continue_as_new(number, stands)
        case _:
            machine.run_again_as_new(number, chance.randrange(100), chance.random() < 0.7)
