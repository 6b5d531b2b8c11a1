"""The queue's rules keep their promises in every order of steps, and each old rule breaks one."""

import inspect
import re
from pathlib import Path

import pytest

from tests.specification.__main__ import PAGE, row_of_configuration, row_of_old_rule
from tests.specification.checker import Specification, check
from tests.specification.configurations import CONFIGURATIONS, LARGE, OLD_RULES


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_order_of_steps_keeps_the_promises(name: str) -> None:
    report = check(CONFIGURATIONS[name].put_back())
    assert not report.why, report
    assert row_of_configuration(name, report) in PAGE.read_text(), "run `make specification RECORD=1`"


@pytest.mark.parametrize("name", OLD_RULES)
def test_an_old_rule_breaks_a_promise(name: str) -> None:
    rule = OLD_RULES[name]
    report = check(CONFIGURATIONS[rule.configuration].put_back(name))
    assert rule.broken in report.why, report
    assert row_of_old_rule(name, report) in PAGE.read_text(), "run `make specification RECORD=1`"


def test_every_switch_of_the_specification_is_an_old_rule() -> None:
    """A switch that no test throws may do nothing."""
    texts = [path.read_text() for path in Path(__file__).parent.glob("[!t]*.py")]
    assert set(re.findall(r'"(\w+)" (?:not )?in self\.old', "".join(texts))) <= OLD_RULES.keys()


def test_names_of_steps_are_functions_of_the_database_or_said_to_be_faults() -> None:
    sql = "".join(path.read_text() for path in Path("migrations/idempotent").glob("*.sql"))
    every = {each.spec for each in {**CONFIGURATIONS, **LARGE}.values()}
    for spec in every:
        source = inspect.getsource(spec)
        for name in re.findall(r'yield f?"(\w+_\w+)', source):
            assert f"function agent.{name}" in sql or name in {"refuse_join", "read_locks", "read_again"}, (
                name
            )


class Clock(Specification):
    """A clock of two hands, for tests of the checker."""

    unfair = "wait"

    def start(self) -> int:
        return 0

    def steps(self, state: int) -> list[tuple[str, int]]:
        if "stops" in self.old:
            return [("wait", 1 - state)]
        return [("tick", (state + 1) % 3)]

    def broken(self, state: int) -> str:
        return "two" if state == 2 and "no_two" in self.old else ""

    def good(self, state: int) -> bool:
        return state == 2


def test_the_checker_tells_what_holds_what_breaks_and_what_never_comes() -> None:
    sound, broken, stops = (check(Clock(*old)) for old in ((), ("no_two",), ("stops",)))
    assert (sound.why, sound.states, sound.depth) == ("", 3, 2)
    assert (broken.why, broken.trace) == ("two", ["tick", "tick"])
    assert (stops.why, stops.cycle) == ("something waits forever", ["wait"])
