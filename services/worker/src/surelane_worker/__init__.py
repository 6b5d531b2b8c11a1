"""The worker: claims events, runs a team's handlers and settles each event once.

What a team imports is here; everything else is the worker's own.
"""

from surelane import __version__
from surelane.events import Event
from surelane_worker.context import Context
from surelane_worker.handler import Call, Given, Middleware
from surelane_worker.handlers.registry import Handlers, HandlersError
from surelane_worker.outcomes import Discard, Done, Outcome, Retry, Snooze

__all__ = [
    "Call",
    "Context",
    "Discard",
    "Done",
    "Event",
    "Given",
    "Handlers",
    "HandlersError",
    "Middleware",
    "Outcome",
    "Retry",
    "Snooze",
    "__version__",
]
