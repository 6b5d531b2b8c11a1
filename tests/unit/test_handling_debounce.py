"""A debounce that makes no sense is refused at start; otherwise it says how long a run waits for more events."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from surelane.events import Event
from surelane_worker import Context, Handlers, HandlersError
from surelane_worker.handling.bounds import Debounce
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
