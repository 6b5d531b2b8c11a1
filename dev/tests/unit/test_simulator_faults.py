"""The simulator's faults, rate limits, short-lived keys, signatures and settings work as documented."""

from datetime import timedelta

import pytest
from pydantic import ValidationError

from surelane.errors import SettingsError
from surelane_dev.simulator.faults import Fault, Faults
from surelane_dev.simulator.interactions import Interactions, ResponseUrl
from surelane_dev.simulator.simulator_settings import SimulatorSettings
from surelane_dev.simulator.webapi.methods import METHODS
from surelane_dev.simulator.webapi.tiers import IN_CHANNEL, RateLimitedError, RateLimits
from surelane_service.service_settings import load_settings
from surelane_worker.slack.limits import rules_of

WRONG: tuple[dict[str, object], ...] = ({"delay": "soon"}, {"count": 0}, {"x": 1})


def test_a_fault_meets_its_method_as_often_as_it_says_or_until_it_is_taken_away() -> None:
    faults = Faults()
    faults.add(Fault(kind="server_error", methods=["chat.postMessage"], count=2))
    taken = [faults.take(Faults.API, name) for name in ("auth.test", *["chat.postMessage"] * 3)]
    assert [fault is not None for fault in taken] == [False, True, True, False]
    assert faults.active == []
    changes: list[int] = []
    faults = Faults(lambda: changes.append(len(faults.active)))
    faults.add(Fault(kind="invalid_auth", count=None))
    assert all(faults.take(Faults.API, "auth.test") for _ in range(5))
    assert faults.take(Faults.DELIVERY) is None
    assert faults.remove(faults.active[0].id)
    assert not faults.remove()
    assert changes[-2:] == [0, 0]


@pytest.mark.parametrize(
    "wrong", [{"kind": kind} | more for kind, more in (("explode", {}), *(("slow", each) for each in WRONG))]
)
def test_a_fault_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Fault.model_validate(wrong)


def test_a_trigger_opens_one_modal_in_three_seconds_and_a_response_url_is_good_for_five_uses() -> None:
    now = [100.0]
    interactions = Interactions("http://slack.example", lambda: now[0])
    first, second = interactions.new_trigger("U1"), interactions.new_trigger("U1")
    assert interactions.use_trigger(first) == ("valid", "U1")
    assert interactions.use_trigger(first)[0] == "used"
    assert interactions.use_trigger("made up")[0] == "unknown"
    now[0] += 3.1
    assert interactions.use_trigger(second)[0] == "expired"
    keys = [interactions.new_response_url("C1", "U1").rpartition("/")[2] for _ in range(2)]
    assert all(isinstance(interactions.spend_response(keys[0]), ResponseUrl) for _ in range(5))
    assert interactions.spend_response(keys[0]) == "used_url"
    assert interactions.spend_response("made up") == "no_such_url"
    now[0] += 30 * 60 + 1
    assert interactions.spend_response(keys[1]) == "expired_url"


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURELANE_SIMULATOR_HOSTS", "slack.test, box")
    monkeypatch.setenv("SURELANE_SIMULATOR_URL", "http://Simulator:8090/")
    monkeypatch.setenv("SURELANE_SIMULATOR_RETRY_DELAYS", "0s,1m,5m")
    monkeypatch.setenv("SURELANE_SIMULATOR_SUBSCRIPTIONS", "app_mention,message.channels")
    monkeypatch.setenv("SURELANE_INGEST_URL", "http://ingest:8080/")
    settings = load_settings(SimulatorSettings)
    assert settings.names == {"slack.test", "box", "simulator", "127.0.0.1"}
    assert settings.retry_delays == (timedelta(0), timedelta(minutes=1), timedelta(minutes=5))
    assert settings.subscriptions == frozenset({"app_mention", "message.channels"})
    assert settings.ingest_url == "http://ingest:8080"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SURELANE_SIMULATOR_RETRY_DELAYS", "0,1,2,3"),
        ("SURELANE_SIMULATOR_RETRY_DELAYS", "later"),
        ("SURELANE_INGEST_URL", "ingest:8080"),
        ("SURELANE_SIMULATOR_PORT", "90000"),
    ],
)
def test_an_unusable_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=name):
        load_settings(SimulatorSettings)


class Stopped:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def done(limits: RateLimits, method: str, calls: int = 500, token: str = "a", channel: str = "C1") -> int:
    """Return how many of a number of calls are done before one is refused."""
    for number in range(calls):
        try:
            limits.count(
                method, METHODS[method].per_minute, token, {"channel": channel, "channel_id": channel}
            )
        except RateLimitedError:
            return number
    return calls


@pytest.mark.parametrize(
    ("method", "calls"), [("users.list", 20), ("reactions.add", 50), ("users.info", 100)]
)
def test_a_method_is_limited_per_minute_and_token(method: str, calls: int) -> None:
    clock = Stopped()
    limits = RateLimits("on", clock)
    assert done(limits, method) == calls
    assert done(limits, method, token="b") == calls
    clock.now = 59.9
    assert done(limits, method) == 0
    clock.now = 60.0
    assert done(limits, method) == calls


def test_refusals_say_when_the_next_call_is_done() -> None:
    clock = Stopped()
    limits = RateLimits("on", clock)
    done(limits, "users.list", calls=1)
    clock.now = 15.5
    done(limits, "users.list")
    with pytest.raises(RateLimitedError) as refused:
        limits.count("users.list", 20, "a", {})
    clock.now += refused.value.retry_after
    assert done(limits, "users.list") == 1
    assert limits.refused == 3


def test_posting_is_limited_per_channel() -> None:
    clock = Stopped()
    limits = RateLimits("on", clock)
    posted = 0
    for step in range(600):
        clock.now = step / 10
        posted += done(limits, "chat.postMessage", calls=1)
    assert 56 <= posted <= 64
    assert done(limits, "chat.postMessage", channel="C2") == 4


def test_apps_outside_the_marketplace_read_once_a_minute_and_limits_can_change_at_any_time() -> None:
    assert done(RateLimits("non-marketplace"), "conversations.replies") == 1
    assert done(RateLimits("on"), "conversations.replies") == 50
    limits = RateLimits("off")
    assert done(limits, "users.list") == 500
    limits.enforce("on")
    assert done(limits, "users.list") == 20
    limits.enforce("off")
    assert done(limits, "users.list") == 500


def test_the_worker_keeps_to_limits_that_are_as_low_as_the_simulators() -> None:
    for method, known in METHODS.items():
        rules = rules_of(method)
        if known.per_minute is not None:
            kept = min(rule.calls * 60 / rule.seconds for rule in rules if not rule.per_channel)
            assert kept <= known.per_minute
        assert (method in IN_CHANNEL) == any(rule.per_channel for rule in rules)
