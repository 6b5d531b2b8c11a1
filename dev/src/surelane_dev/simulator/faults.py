"""Simulate Slack's faults, for chosen methods and a chosen number of times."""

from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from surelane_service.common.durations import Duration

ApiFault = Literal[
    "rate_limited",
    "server_error",
    "slow",
    "invalid_auth",
    "refused",
    "answer_lost",
    "done_but_failed",
    "garbled",
    "unshared",
]
DeliveryFault = Literal["duplicate", "out_of_order"]

_numbers = count(1)


class Fault(BaseModel):
    """A fault. The last two kinds affect the delivery of events, the others calls of the Web API.

    - ``rate_limited``: 429 with ``Retry-After``; the call is not done.
    - ``server_error``: 500; the call is not done.
    - ``slow``: the call is done, and answered after ``delay``.
    - ``invalid_auth``: the token is refused.
    - ``refused``: the call is not done, and answered with ``error``.
    - ``answer_lost``: the call is done, and the connection breaks before the answer.
    - ``done_but_failed``: the call is done, and answered with ``error`` all the same, with HTTP 200.
    - ``garbled``: the call is done, and the answer, with HTTP 200, is no JSON.
    - ``unshared``: ``files.completeUploadExternal`` answers as ever, and shares the file nowhere.
    - ``duplicate``: an acknowledged event is delivered again, as if its acknowledgement were lost.
    - ``out_of_order``: an event is delayed until a later one has overtaken it, or for five seconds.
    """

    model_config = ConfigDict(extra="forbid")

    kind: ApiFault | DeliveryFault
    methods: list[str] = Field(default_factory=list)
    """The affected methods of the Web API; empty means all."""
    count: int | None = Field(default=1, ge=1)
    """How many times it will still happen; ``None`` means until it is removed."""
    retry_after: Annotated[int, Field(ge=0, le=3600)] | str = 2
    """The ``Retry-After`` of ``rate_limited``: seconds, or any text."""
    delay: Duration = timedelta(seconds=5)
    """The delay of ``slow``, in seconds."""
    error: str = "internal_error"
    """The error of ``refused`` and ``done_but_failed``."""
    id: int = Field(default_factory=lambda: next(_numbers))

    def meets(self, kinds: tuple[str, ...], method: str | None) -> bool:
        """Return whether it is one of ``kinds`` and affects the method."""
        return self.kind in kinds and (not self.methods or method in self.methods)


class Faults:
    """The faults that are on, in the order in which they take effect."""

    API: tuple[ApiFault, ...] = get_args(ApiFault)
    DELIVERY: tuple[DeliveryFault, ...] = ("duplicate", "out_of_order")

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._changed = changed
        self.active: list[Fault] = []

    def add(self, fault: Fault) -> None:
        self.active.append(fault)
        self._changed()

    def remove(self, number: int | None = None) -> bool:
        """Switch one fault off, or all of them; return whether there was any."""
        kept = [fault for fault in self.active if number is not None and fault.id != number]
        removed = len(kept) != len(self.active)
        self.active = kept
        self._changed()
        return removed

    def take(self, kinds: tuple[str, ...], method: str | None = None) -> Fault | None:
        """Return the fault that happens now, and count it down. Return ``None`` if no fault does."""
        fault = next((fault for fault in self.active if fault.meets(kinds, method)), None)
        if fault is not None and fault.count is not None:
            fault.count -= 1
            self.active = [other for other in self.active if other.count != 0]
            self._changed()
        return fault
