"""Limit how many events of a handler run at once, or begin in a period, in the whole fleet."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from surelane.jobs import Job
from surelane_service.durations import MOST_AT_ONCE, Rate, parse_rate

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
