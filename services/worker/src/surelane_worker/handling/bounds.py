"""What bounds a handler: its limit in the whole fleet, how long a run waits for more events, and plain numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, get_args

from surelane.events import Event
from surelane.jobs import Job
from surelane_service.common.durations import MOST_AT_ONCE, Rate, parse_rate
from surelane_worker.handling.outcomes import Pause, positive
from surelane_worker.handling.routes import check_version, is_interactive

MOST_ATTEMPTS = 1000
MOST_WAIT = timedelta(hours=1)
"""The longest ``max_wait``: events of Slack's that wait for longer expire."""
Per = Literal["workspace", "channel", "user"]
KeyOf = Callable[[Any], object]
"""Takes a job's payload and returns its key. Jobs with the same key share a limit."""

MOST_KEY = 1000
"""Characters of a key that a function returns."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on the events of a kind that run at once, or begin in any period, counted over all workers.

    Each kind of a handler has a limit of its own. Events over it wait. They cost no attempt and hold no slot.

    Attributes:
        concurrency: how many run at once, from 1 to 10,000.
        rate: how many begin in any period, such as ``60/1m``.
        per: ``workspace``, ``channel`` or ``user``: each of them has a limit of its own. Or a function that returns
            a key for a job's payload: each key has a limit of its own. ``None``: the kind has one limit.

    Raises:
        ValueError: a field cannot be used; the message begins with its name.
    """

    concurrency: int | None = None
    rate: str | None = None
    per: Per | KeyOf | None = None
    parsed_rate: Rate | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.concurrency is None and self.rate is None:
            raise ValueError("concurrency or rate is missing: set at least one of them")
        if self.concurrency is not None and (
            type(self.concurrency) is not int or not 1 <= self.concurrency <= MOST_AT_ONCE
        ):
            raise ValueError(f"concurrency is a number from 1 to {MOST_AT_ONCE}, not {self.concurrency!r}")
        if self.rate is not None:
            try:
                object.__setattr__(self, "parsed_rate", parse_rate(self.rate))
            except ValueError as error:
                raise ValueError(f"rate: {error}") from None
        if self.per is not None and self.per not in get_args(Per) and not callable(self.per):
            raise ValueError(f"per is 'workspace', 'channel', 'user' or a function, not {self.per!r}")

    def key_of(self, job: Job) -> str | None:
        """Return the key of a job; ``None`` where the database derives it. Refuse a function's key that is too long."""
        if job.limit_key is not None or not callable(self.per):
            return job.limit_key
        key = str(self.per(job.payload))
        if len(key) > MOST_KEY:
            raise ValueError(
                f"the function of a limit returned a key of {len(key)} characters for a {job.kind!r}"
            )
        return key

    def check(self, kinds: Sequence[str]) -> None:
        """Refuse a function for kinds that ingest stores."""
        stored = [kind for kind in kinds if kind.startswith("slack.") or kind in {"event", "trigger-fire"}]
        if stored and callable(self.per):
            raise ValueError(
                f"limit: per: ingest stores {stored[0]!r}, and cannot call a function; "
                "write per='workspace', 'channel' or 'user', or enqueue a job of another kind from the handler"
            )

    def declared(self, *, grouped: bool) -> Mapping[str, Any]:
        """Return the limit as ``agent.declare_limits`` takes it."""
        rate = self.parsed_rate
        return {
            "per": "given" if callable(self.per) else self.per or "kind",
            "concurrency": self.concurrency,
            "rate": rate.count if rate else None,
            "period": rate.period.total_seconds() if rate else None,
            "grouped": grouped,
        }


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
        most = min(5 * quiet, MOST_WAIT) if max_wait is None else positive("max_wait", max_wait)
        if max(most, quiet) > MOST_WAIT:
            name, given = ("debounce", debounce) if quiet > MOST_WAIT else ("max_wait", max_wait)
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


class RouteBounds(TypedDict, total=False):
    """The bounds of a route."""

    timeout: Pause | None
    concurrency: int | None
    answers: bool
    ordered: bool


class KindBounds(TypedDict, total=False):
    """The bounds of a handler of whole kinds; see :meth:`Handlers.on`."""

    timeout: Pause | None
    concurrency: int | None
    limit: Limit | None


class OnBounds(KindBounds, total=False):
    """The bounds of a handler of one event or several; see :meth:`Handlers.on`."""

    max_attempts: int | None
    backoff: Pause | None
    version: str | None


class Bounds(OnBounds, total=False):
    """All bounds; see :meth:`Handlers.on`."""

    answers: bool
    ordered: bool
    debounce: Pause | None
    max_wait: Pause | None


def check_bounds(kinds: tuple[str, ...], bounds: Bounds) -> None:
    concurrency, most, version = bounds.get("concurrency"), bounds.get("max_attempts"), bounds.get("version")
    if concurrency is not None and concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, not {concurrency}")
    if most is not None and not 1 <= most <= MOST_ATTEMPTS:
        raise ValueError(f"max_attempts must be 1 to {MOST_ATTEMPTS:,}, not {most}")
    if (bounds.get("answers") or bounds.get("ordered")) and not any(map(is_interactive, kinds)):
        raise ValueError(f"answers and ordered are for commands and interactions, not {kinds[0]!r}")
    if (limit := bounds.get("limit")) is not None:
        limit.check(kinds)
    if version is not None:
        check_version(version, kinds)
