"""One claim of this worker, from the answer to its claim until the answer to its settle."""

from collections.abc import Sequence
from typing import Protocol

from opentelemetry.trace import SpanContext

from surelane.events import Event

LOST = "lease lost"
"""Why a holder stops whose claim no longer stands."""


class Claim:
    """One claimed event, and the outcome of its attempt once there is one."""

    __slots__ = ("argument", "event", "lease_ends", "outcome", "settling_since", "size", "span")

    def __init__(self, event: Event, lease_ends: float) -> None:
        self.event = event
        self.lease_ends = lease_ends
        """The earliest time at which the lease may run out, by the event loop's clock."""
        self.size = len(event.body)
        """Characters that it keeps in memory: the event's body, and the outcome's argument while it is settled."""
        self.outcome: str | None = None
        """The name of its outcome, from the moment it is handed to the settler. Heartbeats then no longer matter."""
        self.argument: str | None = None
        """What the outcome needs besides its name, as JSON text: see ``agent.settle``."""
        self.settling_since = 0
        """When its outcome was handed over, in nanoseconds since 1970; kept while tracing is on."""
        self.span: SpanContext | None = None
        """The span of its attempt, while tracing is on."""


class Holder(Protocol):
    """The running work that claims belong to. A lost lease stops it."""

    @property
    def claims(self) -> Sequence[Claim]: ...

    @property
    def stopped(self) -> str | None: ...

    def stop(self, why: str) -> None: ...
