"""Work: the claims that one slot runs, and how claimed events become work."""

import asyncio
from collections.abc import Iterable, Mapping
from contextvars import Context as Variables
from contextvars import copy_context
from itertools import takewhile

from surelane.encryption.sealing import CURRENT
from surelane.events import Event
from surelane_service.engine import MOST_MEMBERS
from surelane_worker.handling.handler import Handler
from surelane_worker.leasing import Claim
from surelane_worker.slack.admission import check_after_wait

DRAINED = "worker stopping"
"""Why work stops whose worker stops."""
CANCELLED = "cancelled"
"""Why work stops whose event was asked to be cancelled."""
_OURS = (CURRENT, check_after_wait)
"""Context variables that each attempt sets anew."""
_NOTHING = object()


class Work:
    """The claims that one slot runs: a single event, or the events of a group in order."""

    __slots__ = ("claims", "handler", "head", "since", "stopped", "task")

    def __init__(self, handler: Handler, events: Iterable[Event], lease_ends: float, since: float) -> None:
        self.handler = handler
        """The handler of its next events."""
        self.claims = [Claim(event, lease_ends) for event in events]
        self.since = since
        """Since when it has waited for a slot, by the event loop's clock."""
        self.task: asyncio.Task[None] | None = None
        self.head: Claim | None = None
        """The claim that stands for a run of several events, if their handler has a ``debounce``."""
        self.stopped: str | None = None
        """Why it stops, once it does."""

    @property
    def brings_more(self) -> bool:
        """Whether its group probably has more events, which can be claimed once these are settled."""
        return len(self.claims) > MOST_MEMBERS

    def next_run(self, handlers: Mapping[str, Handler]) -> list[Claim]:
        """Return the next claims, in order, of :attr:`handler`: a group may have events of several kinds."""
        left = (claim for claim in self.claims if claim.outcome is None)
        return list(takewhile(lambda claim: handlers[claim.event.kind] is self.handler, left))

    def goes_on(self, handlers: Mapping[str, Handler]) -> bool:
        """Switch to the handler of the next claim. Return whether there is one."""
        for claim in self.claims:
            if claim.outcome is None:
                self.handler = handlers[claim.event.kind]
                return True
        return False

    def is_later(self, claim: Claim) -> bool:
        """Return whether a claim waits for the handler of an earlier event of its group, or follows one."""
        if self.head is not None:
            return claim is not self.head
        first = next((each for each in self.claims if each.outcome is None), None)
        return not self.handler.grouped and claim is not first

    def wind_up(self) -> None:
        """Let the running handler finish, and start no further one."""
        if self.stopped is None:
            self.stopped = DRAINED

    def stop(self, why: str) -> None:
        """Cancel the handler, or keep it from starting."""
        self.stopped = why
        if self.task is not None:
            self.task.cancel()


def works_of(
    events: Iterable[Event], handlers: Mapping[str, Handler], lease_ends: float, now: float
) -> list[Work]:
    """Return claimed events as work: the events of one group together, in the order in which they happened."""
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


def fresh_variables() -> Variables:
    """Return the context variables that each handler finds."""
    variables = copy_context()
    variables.run(CURRENT.set, None)
    return variables


def left_values(before: Variables) -> bool:
    """Return whether a handler has left values in the context variables of the current task."""
    now = copy_context()
    try:
        if now == before:  # fast where nothing was set
            return False
    except Exception:  # noqa: BLE001, S110 - values compare themselves, by the handler's code
        pass
    return any(
        variable not in _OURS and before.get(variable, _NOTHING) is not value
        for variable, value in now.items()
    )
