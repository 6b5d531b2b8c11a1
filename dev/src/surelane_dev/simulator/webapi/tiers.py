"""Refuse calls above Slack's rate limits: per method and token, and for posting per channel.

A call is refused if as many as the limit allows were done in the window before it. Refused calls do not count.
"""

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

Enforced = Literal["off", "on", "non-marketplace"]

MINUTE = 60.0
OTHERS = 20
"""Calls per minute of a method that is not listed: Slack's Tier 2."""
PER_MINUTE = {
    "api.test": 100,
    "apps.uninstall": 1,
    "assistant.search.context": 10,
    "assistant.threads.setSuggestedPrompts": 50,
    "assistant.threads.setTitle": 50,
    "auth.revoke": 50,
    "auth.test": 600,
    "bookmarks.list": 50,
    "bots.info": 50,
    "chat.appendStream": 100,
    "chat.delete": 50,
    "chat.deleteScheduledMessage": 50,
    "chat.getPermalink": 600,
    "chat.postEphemeral": 100,
    "chat.postMessage": 300,
    "chat.scheduleMessage": 50,
    "chat.scheduledMessages.list": 50,
    "chat.startStream": 20,
    "chat.stopStream": 20,
    "chat.unfurl": 50,
    "chat.update": 50,
    "conversations.history": 50,
    "conversations.info": 50,
    "conversations.join": 50,
    "conversations.list": 20,
    "conversations.mark": 50,
    "conversations.members": 100,
    "conversations.open": 50,
    "conversations.replies": 50,
    "dialog.open": 100,
    "files.completeUploadExternal": 100,
    "files.getUploadURLExternal": 100,
    "files.info": 100,
    "functions.completeError": 50,
    "functions.completeSuccess": 50,
    "oauth.v2.access": 100,
    "reactions.add": 50,
    "reactions.get": 50,
    "reactions.remove": 20,
    "team.info": 50,
    "users.conversations": 50,
    "users.info": 100,
    "users.list": 20,
    "users.lookupByEmail": 50,
    "users.profile.get": 100,
    "views.open": 100,
    "views.publish": 100,
    "views.push": 100,
    "views.update": 100,
}
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

    def count(self, method: str, token: str | None, arguments: Mapping[str, object]) -> None:
        """Count a call.

        Raises:
            RateLimitedError: it is above a limit, so it must not be done.
        """
        if self.enforced == "off":
            return
        now = self._clock()
        limits = self._limits(method, token or "", arguments)
        for limit in limits:
            done = self._done[limit.name]
            while done and done[0] <= now - limit.seconds:
                done.popleft()
            if len(done) >= limit.calls:
                self.refused += 1
                raise RateLimitedError(max(1, math.ceil(done[-limit.calls] + limit.seconds - now)))
        for limit in limits:
            self._done[limit.name].append(now)

    def _limits(self, method: str, token: str, arguments: Mapping[str, object]) -> list[_Limit]:
        calls = PER_MINUTE.get(method, OTHERS)
        if self.enforced == "non-marketplace":
            calls = NON_MARKETPLACE.get(method, calls)
        limits = []
        if method in IN_CHANNEL:
            channel = str(arguments.get(IN_CHANNEL[method]))
            limits.append(_Limit((method, token, channel), BURST, float(BURST)))
        if method in PER_MINUTE or method not in IN_CHANNEL:
            limits.append(_Limit((method, token), calls, MINUTE))
        return limits
