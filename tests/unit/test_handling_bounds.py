"""Debounces and limits that make no sense are refused at start, and pauses grow within bounds."""

import random
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surelane_service.common.durations import Rate, jittered, parse_rate, rate_text
from surelane_worker import Context, Event, Handlers, Job, Limit
from surelane_worker.errors import HandlersError
from surelane_worker.handling.bounds import Debounce
from surelane_worker.handling.outcomes import Backoff
from surelane_worker.handling.registry import registered_in

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def handle(events: list[Event], ctx: Context) -> None: ...


async def handle_one(event: Event, ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"debounce": "soon"}, "debounce: 'soon' is not a duration"),
        ({"debounce": 0}, "debounce must be positive"),
        ({"debounce": "-1s"}, "debounce: '-1s' is not a duration"),
        ({"debounce": "2s", "max_wait": "soon"}, "max_wait: 'soon' is not a duration"),
        ({"debounce": "2s", "max_wait": "1s"}, "max_wait: '1s' is shorter than debounce='2s'"),
        ({"debounce": "2s", "max_wait": "61m"}, "max_wait: '61m' is longer than an hour"),
        ({"debounce": "2h"}, "debounce: .2h. is longer than an hour"),
        ({"max_wait": "10s"}, "max_wait: it bounds debounce, which is missing"),
    ],
)
def test_a_debounce_that_makes_no_sense_names_its_field(given: dict[str, Any], why: str) -> None:
    register: Any = Handlers().on("slack.app_mention", **given)
    with pytest.raises(HandlersError, match=f"handle: {why}"):
        register(handle)


def test_routes_within_a_kind_and_kinds_that_wait_for_no_other_event_are_refused() -> None:
    handlers = Handlers()
    handlers.on("slack.message.im", debounce="2s")(handle)
    handlers.message("help")(handle_one)
    with pytest.raises(HandlersError, match=r"takes several events of 'slack.message.im', so no route"):
        registered_in(handlers).all()
    for kind in ("slack.command.deploy", "slack.block_actions"):
        why = f"debounce: each '{kind}' is handled at once, beside its thread"
        with pytest.raises(HandlersError, match=why):
            Handlers().on("job", kind, debounce="2s")(handle)


def event(stored: float, due: float | None = None) -> Event:
    """Return an event that was stored, and due, so many seconds ago."""
    happened = NOW - timedelta(seconds=stored if due is None else due)
    return Event(1, "job", happened, 1, 1, NOW, "{}", enqueued_at=NOW - timedelta(seconds=stored))


@pytest.mark.parametrize(
    ("events", "wait"),
    [
        ([event(0)], 2),
        ([event(1.5)], 0.5),
        ([event(2)], 0),
        ([event(5), event(0.5)], 1.5),
        ([event(9), event(0)], 1),
        ([event(10), event(0)], 0),
        ([event(60, due=1)], 1),
        ([event(1, due=-3600)], 1),  # Slack's clock is ahead
    ],
)
def test_a_run_waits_for_quiet_but_not_forever(events: list[Event], wait: float) -> None:
    debounce = Debounce.of("2s", "10s", ["job"])
    assert debounce is not None
    assert debounce.wait(events, NOW) == pytest.approx(wait)
    assert Debounce.of("2s", None, ["job"]) == debounce, "a wait is bounded by default"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "concurrency"),
        *(({"concurrency": each}, "concurrency") for each in (0, -1, 10_001, True, 2.5)),
        *(({"rate": each}, "rate") for each in ("60", 60, "0/1m", "-3/1m", "60/0s", "60/2d", "60/soon")),
        ({"rate": "1000001/1m"}, "rate"),
        ({"concurrency": 1, "per": "team"}, "per"),
        ({"concurrency": 1, "per": 3}, "per"),
    ],
)
def test_a_limit_that_makes_no_sense_names_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}"):
        Limit(**fields)


def test_a_limit_is_declared_for_each_kind_and_a_function_gives_the_key_of_a_job() -> None:
    handlers = Handlers()
    handlers.on("a", "b", limit=Limit(concurrency=2, rate="60/1m", per="user"))(handle_one)
    handlers.command("/deploy", limit=Limit(rate="1/500ms"))(handle_one)
    limits = {kind: handler.limit for handler in registered_in(handlers).all() for kind in handler.kinds}
    assert limits.keys() == {"a", "b", "slack.command.deploy"}
    assert limits["a"] is not None
    declared = {"per": "user", "concurrency": 2, "rate": 60, "period": 60.0, "grouped": True}
    assert limits["a"].declared(grouped=True) == declared
    limit = Limit(concurrency=1, per=lambda payload: payload["customer"])
    assert limit.key_of(Job("job", {"customer": 7})) == "7"
    assert limit.key_of(Job("job", {"customer": 7}, limit_key="own")) == "own"
    assert Limit(concurrency=1, per="user").key_of(Job("job")) is None
    for kind in ("slack.app_mention", "trigger-fire", "event"):
        with pytest.raises(HandlersError, match=f"limit: per: ingest stores '{kind}'"):
            Handlers().on("job", kind, limit=Limit(concurrency=1, per=str))(handle_one)
    with pytest.raises(ValueError, match="1001 characters"):
        limit.key_of(Job("job", {"customer": "x" * 1001}))


@pytest.mark.parametrize("text", ["60/1m", "1/500ms", "5/2h", "1000/1d", "3/1.5s"])
def test_rates_are_written_as_they_are_read(text: str) -> None:
    rate = parse_rate(text)
    assert parse_rate(rate_text(rate.count, rate.period)) == rate
    assert parse_rate("60/1m") == Rate(60, timedelta(minutes=1))


def drawing(spread: float) -> AbstractContextManager[object]:
    """Let every random number be this part of the way between its bounds, for the length of a block."""
    return patch.object(random, "uniform", lambda low, high: low + spread * (high - low))


def test_pause_grows_with_the_square_of_the_attempt_and_jitter_is_a_tenth() -> None:
    backoff = Backoff(timedelta(seconds=10), timedelta(hours=1))
    with drawing(0.5):
        assert [backoff.pause(attempt) for attempt in (1, 2, 3, 4)] == [10, 40, 90, 160]
    for spread, pause, seconds in ((0.0, 9, 5), (1.0, 11, 6.5)):  # it makes no interval shorter
        with drawing(spread):
            assert backoff.pause(1) == pause
            assert jittered(timedelta(seconds=5)) == seconds


@given(attempt=st.integers(-5, 10**6), spread=st.floats(0, 1, exclude_max=True))
def test_pause_is_never_negative_nor_longer_than_the_cap(attempt: int, spread: float) -> None:
    with drawing(spread):
        assert 0 < Backoff(timedelta(seconds=10), timedelta(minutes=5)).pause(attempt) <= 300
