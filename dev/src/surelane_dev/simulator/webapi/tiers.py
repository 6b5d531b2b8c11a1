"""Refuse calls above Slack's rate limits: per method and token, and for posting per channel.

A call is refused if as many as the limit allows were done in the window before it. Refused calls do not count.
"""

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

Enforced = Literal["off", "on", "non-marketplace"]

MINUTE = 60.0
NON_MARKETPLACE = {"conversations.history": 1, "conversations.replies": 1}
IN_CHANNEL = {"chat.postMessage": "channel", "assistant.threads.setStatus": "channel_id"}
"""The methods that are limited per channel, and the argument that names it."""
BURST = 4
"""Calls in a channel within as many seconds: one per second, with short bursts."""


class Tiers(BaseModel):
    """Whether Slack's rate limits are enforced, and which."""

    model_config = ConfigDict(extra="forbid")

    enforced: Enforced


class RateLimitedError(Exception):
    """The call is above a limit."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"again in {retry_after} s")
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class _Limit:
    name: tuple[str, ...]
    calls: int
    seconds: float


class RateLimits:
    """Count the calls that were done, by method and token."""

    def __init__(self, enforced: Enforced, clock: Callable[[], float] = time.monotonic) -> None:
        self.enforced = enforced
        self.refused = 0
        """How many calls were refused."""
        self._clock = clock
        self._done: dict[tuple[str, ...], deque[float]] = defaultdict(deque)

    def enforce(self, enforced: Enforced) -> None:
        """Enforce other limits from now on, and forget all calls."""
        self.enforced = enforced
        self.refused = 0
        self._done.clear()

    def count(
        self, method: str, per_minute: int | None, token: str | None, arguments: Mapping[str, object]
    ) -> None:
        """Count a call, or raise :class:`RateLimitedError`: it is above a limit, so it must not be done."""
        if self.enforced == "off":
            return
        now = self._clock()
        limits = tuple(self._limits(method, per_minute, token or "", arguments))
        for limit in limits:
            done = self._done[limit.name]
            while done and done[0] <= now - limit.seconds:
                done.popleft()
            if len(done) >= limit.calls:
                self.refused += 1
                raise RateLimitedError(max(1, math.ceil(done[-limit.calls] + limit.seconds - now)))
        for limit in limits:
            self._done[limit.name].append(now)

    def _limits(
        self, method: str, per_minute: int | None, token: str, arguments: Mapping[str, object]
    ) -> Iterator[_Limit]:
        if method in IN_CHANNEL:
            channel = str(arguments.get(IN_CHANNEL[method]))
            yield _Limit((method, token, channel), BURST, float(BURST))
        if self.enforced == "non-marketplace":
            per_minute = NON_MARKETPLACE.get(method, per_minute)
        if per_minute is not None:
            yield _Limit((method, token), per_minute, MINUTE)
