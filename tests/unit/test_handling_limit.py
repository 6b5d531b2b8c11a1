"""Limits are refused at start where they make no sense, with the name of the field."""

from datetime import timedelta
from typing import Any

import pytest

from surelane_service.durations import Rate, parse_rate, rate_text
from surelane_worker import Context, Event, Handlers, HandlersError, Job, Limit
from surelane_worker.handling.registry import registered_in


async def handle(event: Event, ctx: Context) -> None: ...


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


def test_a_limit_is_declared_for_each_kind() -> None:
    handlers = Handlers()
    handlers.on("a", "b", limit=Limit(concurrency=2, rate="60/1m", per="user"))(handle)
    handlers.command("/deploy", limit=Limit(rate="1/500ms"))(handle)
    limits = {kind: handler.limit for handler in registered_in(handlers).all() for kind in handler.kinds}
    assert limits.keys() == {"a", "b", "slack.command.deploy"}
    assert limits["a"] is not None
    declared = {"per": "user", "concurrency": 2, "rate": 60, "period": 60.0, "grouped": True}
    assert limits["a"].declared(grouped=True) == declared


def test_a_function_gives_the_key_of_a_job() -> None:
    limit = Limit(concurrency=1, per=lambda payload: payload["customer"])
    assert limit.key_of(Job("job", {"customer": 7})) == "7"
    assert limit.key_of(Job("job", {"customer": 7}, limit_key="own")) == "own"
    assert Limit(concurrency=1, per="user").key_of(Job("job")) is None
    for kind in ("slack.app_mention", "trigger-fire", "event"):
        with pytest.raises(HandlersError, match=f"limit: per: ingest stores '{kind}'"):
            Handlers().on("job", kind, limit=Limit(concurrency=1, per=str))(handle)
    with pytest.raises(ValueError, match="1001 characters"):
        limit.key_of(Job("job", {"customer": "x" * 1001}))


@pytest.mark.parametrize("text", ["60/1m", "1/500ms", "5/2h", "1000/1d", "3/1.5s"])
def test_rates_are_written_as_they_are_read(text: str) -> None:
    rate = parse_rate(text)
    assert parse_rate(rate_text(rate.count, rate.period)) == rate
    assert parse_rate("60/1m") == Rate(60, timedelta(minutes=1))
