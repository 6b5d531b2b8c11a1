"""The worker: claims events, runs a team's handlers and settles each event once.

What a team imports is here; everything else is the worker's own.
"""

from surelane import __version__
from surelane.events import Event
from surelane.jobs import Child, Continuation, Job
from surelane_worker.handling.context import Context
from surelane_worker.handling.handler import Call, Given, Middleware
from surelane_worker.handling.outcomes import Await, Discard, Done, FanOut, Outcome, Retry, Snooze
from surelane_worker.handling.registry import Handlers, HandlersError

__all__ = [
    "Await",
    "Call",
    "Child",
    "Context",
    "Continuation",
    "Discard",
    "Done",
    "Event",
    "FanOut",
    "Given",
    "Handlers",
    "HandlersError",
    "Job",
    "Middleware",
    "Outcome",
    "Retry",
    "Snooze",
    "__version__",
]
