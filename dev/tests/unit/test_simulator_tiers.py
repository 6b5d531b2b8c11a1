"""The simulator refuses calls above Slack's rate limits, where it is asked to."""

import pytest

from surelane_dev.simulator.webapi.dispatch import METHODS
from surelane_dev.simulator.webapi.tiers import IN_CHANNEL, PER_MINUTE, RateLimitedError, RateLimits
from surelane_worker.slack.limits import rules_of


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def done(limits: RateLimits, method: str, calls: int = 500, token: str = "a", channel: str = "C1") -> int:
    """Return how many of a number of calls are done before one is refused."""
    for number in range(calls):
        try:
            limits.count(method, token, {"channel": channel, "channel_id": channel})
        except RateLimitedError:
            return number
    return calls


@pytest.mark.parametrize(
    ("method", "calls"), [("users.list", 20), ("reactions.add", 50), ("users.info", 100)]
)
def test_a_method_is_limited_per_minute_and_token(method: str, calls: int) -> None:
    clock = Clock()
    limits = RateLimits("on", clock)
    assert done(limits, method) == calls
    assert done(limits, method, token="b") == calls
    clock.now = 59.9
    assert done(limits, method) == 0
    clock.now = 60.0
    assert done(limits, method) == calls


def test_refusals_say_when_the_next_call_is_done() -> None:
    clock = Clock()
    limits = RateLimits("on", clock)
    done(limits, "users.list", calls=1)
    clock.now = 15.5
    done(limits, "users.list")
    with pytest.raises(RateLimitedError) as refused:
        limits.count("users.list", "a", {})
    clock.now += refused.value.retry_after
    assert done(limits, "users.list") == 1
    assert limits.refused == 3


def test_posting_is_limited_per_channel() -> None:
    clock = Clock()
    limits = RateLimits("on", clock)
    posted = 0
    for step in range(600):
        clock.now = step / 10
        posted += done(limits, "chat.postMessage", calls=1)
    assert 56 <= posted <= 64
    assert done(limits, "chat.postMessage", channel="C2") == 4


def test_apps_outside_the_marketplace_read_once_a_minute() -> None:
    assert done(RateLimits("non-marketplace"), "conversations.replies") == 1
    assert done(RateLimits("on"), "conversations.replies") == 50


def test_other_limits_can_be_enforced_at_any_time() -> None:
    limits = RateLimits("off")
    assert done(limits, "users.list") == 500
    limits.enforce("on")
    assert done(limits, "users.list") == 20
    limits.enforce("off")
    assert done(limits, "users.list") == 500


def test_the_worker_keeps_to_limits_that_are_as_low_as_the_simulators() -> None:
    for method in METHODS:
        rules = rules_of(method)
        if method in PER_MINUTE or method not in IN_CHANNEL:
            assert min(
                rule.calls * 60 / rule.seconds for rule in rules if not rule.per_channel
            ) <= PER_MINUTE.get(method, 20)
        assert (method in IN_CHANNEL) == any(rule.per_channel for rule in rules)
