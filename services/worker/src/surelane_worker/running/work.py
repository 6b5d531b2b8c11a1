"""What a worker holds: claims, and the work they make up."""

import asyncio
from collections.abc import Iterable, Mapping
from itertools import takewhile

from opentelemetry.trace import SpanContext

from surelane.events import Event
from surelane_worker.handling.handler import Handler

LOST = "lease lost"
DRAINED = "worker stopping"
MOST_MEMBERS = 100
"""Events that an entity's head brings along at most."""


class Claim:
    """One event in this worker's hands, from its claim until the database has answered to its settle."""

    __slots__ = ("event", "lease_ends", "settling", "settling_since", "size", "span")

    def __init__(self, event: Event, lease_ends: float) -> None:
        self.event = event
        self.lease_ends = lease_ends
        """When the lease runs out at the earliest, by the event loop's clock."""
        self.size = len(event.body)
        """How much text it keeps in memory: the event's body, and a result while that is settled."""
        self.settling = False
        """Whether its outcome is on its way to the database, so that heartbeats no longer matter to it."""
        self.settling_since = 0
        """Since when, in nanoseconds since 1970; kept while tracing is on."""
        self.span: SpanContext | None = None
        """The span of its attempt, while tracing is on."""

    @property
    def fence(self) -> tuple[int, int]:
        """What the database knows this claim by."""
        return self.event.id, self.event.claim


class Work:
    """Events that one slot works off together: a single one, or an entity's in order."""

    __slots__ = ("claims", "handler", "since", "stopped", "task")

    def __init__(self, handler: Handler, events: Iterable[Event], lease_ends: float, since: float) -> None:
        self.handler = handler
        """What takes the next events of it."""
        self.claims = [Claim(event, lease_ends) for event in events]
        self.since = since
        """When it was claimed, by the event loop's clock."""
        self.task: asyncio.Task[None] | None = None
        self.stopped: str | None = None
        """Why it goes no further, where it does not."""

    @property
    def brings_more(self) -> bool:
        """Whether its entity probably has more events, which come when these are settled."""
        return len(self.claims) > MOST_MEMBERS

    def next_run(self, handlers: Mapping[str, Handler]) -> list[Claim]:
        """The next claims in order that :attr:`handler` takes: an entity may have events of several kinds."""
        left = (claim for claim in self.claims if not claim.settling)
        return list(takewhile(lambda claim: handlers[claim.event.kind] is self.handler, left))

    def goes_on(self, handlers: Mapping[str, Handler]) -> bool:
        """Whether claims of another handler follow, which is :attr:`handler` from now on."""
        for claim in self.claims:
            if not claim.settling:
                self.handler = handlers[claim.event.kind]
                return True
        return False

    def wind_up(self) -> None:
        """Lets the handler that runs end, and starts no further one."""
        if self.stopped is None:
            self.stopped = DRAINED

    def stop(self, why: str) -> None:
        """Cancels the handler, or keeps it from starting."""
        self.stopped = why
        if self.task is not None:
            self.task.cancel()


def works_of(
    events: Iterable[Event], handlers: Mapping[str, Handler], lease_ends: float, now: float
) -> list[Work]:
    """Claimed events as work: those of one entity together, in the order in which they happened."""
    works = []
    grouped: dict[str, list[Event]] = {}
    for event in events:
        if event.group_key is None:
            works.append(Work(handlers[event.kind], (event,), lease_ends, now))
        else:
            grouped.setdefault(event.group_key, []).append(event)
    for members in grouped.values():
        members.sort(key=lambda event: (event.event_ts, event.id))
        works.append(Work(handlers[members[0].kind], members, lease_ends, now))
    return works
