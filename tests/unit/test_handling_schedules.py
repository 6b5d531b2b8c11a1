# ruff: noqa: ARG001 - a handler takes both arguments, used or not
"""Sets of handlers include other sets and declare schedules."""

from typing import Any, cast

import pytest

from surelane_worker import Call, Context, Event, Given, Handlers, HandlersError
from surelane_worker.handling.registry import registered_in

NO_EVENT = cast("Event", None)
NO_CONTEXT = cast("Context", None)


def saying(word: str, *kinds: str) -> Handlers:
    """Return a set whose handler returns a word."""
    handlers = Handlers()

    @handlers.on(*kinds)
    async def say(event: Event, ctx: Context) -> str:
        return word

    return handlers


async def said(handlers: Handlers) -> dict[str, object]:
    """Return what the handler of each kind returns."""
    by_kind = registered_in(handlers).by_kind()
    return {kind: await handler.call(NO_EVENT, NO_CONTEXT) for kind, handler in by_kind.items()}


async def test_a_sets_own_handlers_stand_before_included_ones_whenever_they_are_registered() -> None:
    own = Handlers()
    own.include(saying("included", "a", "b"))

    @own.on("a")
    async def mine(event: Event, ctx: Context) -> str:
        return "mine"

    own.include(saying("later", "b", "c"))
    assert await said(own) == {"a": "mine", "b": "included", "c": "later"}


async def test_middleware_of_both_sets_runs_around_an_included_handler() -> None:
    inner, outer = saying("word", "a"), Handlers()

    async def within(given: Given, ctx: Context, call_next: Call) -> object:
        return f"({await call_next(given, ctx)})"

    async def around(given: Given, ctx: Context, call_next: Call) -> object:
        return f"[{await call_next(given, ctx)}]"

    inner.middleware(within)
    outer.middleware(around)
    outer.include(inner)
    assert await said(outer) == {"a": "[(word)]"}


def test_schedules_come_with_the_sets_that_declare_them() -> None:
    inner, outer = Handlers(), Handlers()
    inner.cron("nightly", "0 3 * * *", kind="a")
    inner.cron("hourly", "0 * * * *", kind="a")
    outer.include(inner)
    outer.cron("nightly", "0 4 * * *", kind="b", payload={"n": 1}, time_zone="Europe/Berlin", catch_up="all")
    declared = {"nightly": ("0 4 * * *", "b"), "hourly": ("0 * * * *", "a")}
    assert {each.name: (each.schedule, each.kind) for each in registered_in(outer).schedules()} == declared
    with pytest.raises(HandlersError, match="two schedules are called 'nightly'"):
        outer.cron("nightly", "0 4 * * *", kind="a")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"schedule": "often"}, {"schedule": "0 0 31 2 *"}, {"time_zone": "Mars/Base"}, {"overlap": "stop"}),
        *({"jitter": "2d"}, {"jitter": "soon"}, {"catch_up": 0}, {"catch_up": "most"}),
    ],
)
def test_a_schedule_that_cannot_be_read_is_refused_at_start(wrong: Any) -> None:
    with pytest.raises(HandlersError, match="schedule 'nightly'"):
        Handlers().cron(**{"name": "nightly", "schedule": "0 3 * * *", "kind": "a", **wrong})


def test_a_failure_hook_has_the_kinds_of_its_set_or_those_that_it_names() -> None:
    inner, outer = saying("word", "a", "b"), saying("other", "c")
    outer.include(inner)

    @inner.on_failure("a")
    async def first(event: Event, ctx: Context) -> None: ...

    @outer.on_failure()
    async def second(event: Event, ctx: Context) -> None: ...

    by_kind = registered_in(outer).by_kind()
    hooks = {kind: handler.name for kind, handler in by_kind.items() if kind.startswith("surelane.")}
    assert set(hooks) == {f"surelane.failed:{kind}" for kind in "abc"}
    assert {name.rsplit(".", 1)[-1] for name in hooks.values()} == {"second"}
