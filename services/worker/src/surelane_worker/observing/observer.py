"""What the stages of a worker report to: its metrics, and its tracing where that is on."""

from dataclasses import dataclass

from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Observer:
    """The metrics and the tracing of one worker."""

    metrics: Metrics
    tracing: Tracing | None = None
