"""Keep the short-lived parts of interactions: trigger ids, response URLs, and the views of people."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from secrets import token_hex, token_urlsafe
from typing import Any, Literal

from surelane_dev.simulator.views import Views

TRIGGER_LASTS = timedelta(seconds=3)
RESPONSE_LASTS = timedelta(minutes=30)
RESPONSE_USES = 5

TriggerState = Literal["valid", "unknown", "expired", "used"]


@dataclass(slots=True)
class ResponseUrl:
    """A URL at which an app may answer an interaction, five times in thirty minutes."""

    channel: str
    user: str
    message_ts: str | None
    until: float
    team_id: str
    """The workspace of the app that answers."""
    uses_left: int = RESPONSE_USES


class Interactions:
    """The trigger ids and response URLs that are still valid, and the open views."""

    def __init__(self, public_url: str, now: Callable[[], float] = time.time) -> None:
        self.public_url = public_url
        self.responses: dict[str, ResponseUrl] = {}
        self.views = Views()
        self.details: dict[str, dict[str, Any]] = {}
        """What each person saw last of a Work Object, by the person's id."""
        self.now = now
        self._triggers: dict[str, tuple[float, str]] = {}
        self._used: set[str] = set()

    def new_trigger(self, user: str) -> str:
        """Make a trigger id, valid for three seconds and one modal."""
        trigger = f"{int(self.now() * 1000)}.{token_hex(6)}.{token_hex(16)}"
        self._triggers[trigger] = (self.now() + TRIGGER_LASTS.total_seconds(), user)
        return trigger

    def trigger(self, trigger: str) -> tuple[TriggerState, str]:
        """Return whether a trigger id is valid, and its user."""
        if trigger in self._used:
            return "used", ""
        until, user = self._triggers.get(trigger, (None, ""))
        if until is None:
            return "unknown", ""
        return ("expired" if until < self.now() else "valid"), user

    def use_trigger(self, trigger: str) -> tuple[TriggerState, str]:
        """Use up a trigger id. Return whether it was valid, and its user."""
        state, user = self.trigger(trigger)
        if state == "valid":
            self._used.add(trigger)
        return state, user

    def new_response_url(
        self, channel: str, user: str, message_ts: str | None = None, *, team_id: str = ""
    ) -> str:
        """Make a URL at which the app of a workspace may answer."""
        key, until = token_urlsafe(18), self.now() + RESPONSE_LASTS.total_seconds()
        self.responses[key] = ResponseUrl(channel, user, message_ts, until, team_id)
        return f"{self.public_url}/response/{key}"

    def spend_response(self, key: str) -> ResponseUrl | str:
        """Count one use of a response URL. Return the error's name if no use is left."""
        response = self.responses.get(key)
        if response is None:
            return "no_such_url"
        if response.until < self.now():
            return "expired_url"
        if not response.uses_left:
            return "used_url"
        response.uses_left -= 1
        return response
