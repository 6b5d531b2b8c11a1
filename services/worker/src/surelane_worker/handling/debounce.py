"""Debounce: how long a run waits for more events of its thread, so that one run gets them all."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from surelane.events import Event
from surelane_worker.handling.outcomes import Pause, positive
from surelane_worker.handling.routes import is_interactive

MOST = timedelta(hours=1)
"""The longest ``max_wait``: events of Slack's that wait for longer expire."""
TIMES = 5
"""``max_wait`` by default: so many times ``debounce``."""


@dataclass(frozen=True, slots=True)
class Debounce:
    """A run begins once no event has come for ``quiet``, or the oldest of them has waited for ``most``."""

    quiet: timedelta
    most: timedelta

    @classmethod
    def of(cls, debounce: Pause | None, max_wait: Pause | None, kinds: Sequence[str]) -> "Debounce | None":
        """Read a handler's ``debounce`` and ``max_wait``, if it has them. Refuse what cannot be used, by its name."""
        if debounce is None:
            if max_wait is not None:
                raise ValueError("max_wait: it bounds debounce, which is missing")
            return None
        quiet = positive("debounce", debounce)
        most = min(TIMES * quiet, MOST) if max_wait is None else positive("max_wait", max_wait)
        if max(most, quiet) > MOST:
            name, given = ("debounce", debounce) if quiet > MOST else ("max_wait", max_wait)
            raise ValueError(f"{name}: {given!r} is longer than an hour")
        if most < quiet:
            raise ValueError(f"max_wait: {max_wait!r} is shorter than debounce={debounce!r}")
        if alone := [kind for kind in kinds if is_interactive(kind)]:
            raise ValueError(f"debounce: each {alone[0]!r} is handled at once, beside its thread")
        return cls(quiet, most)

    def wait(self, events: Sequence[Event], now: datetime) -> float:
        """Return for how many seconds more a run of these events waits, by the database's time ``now``."""
        came = [_came(event, now) for event in events]
        begins = min(max(came) + self.quiet, min(came) + self.most)
        return max((begins - now).total_seconds(), 0.0)


def _came(event: Event, now: datetime) -> datetime:
    """Return when an event could be handled first: a job that was stored for later, at that time."""
    stored = event.enqueued_at or event.event_ts
    return event.event_ts if stored < event.event_ts <= now else stored
