"""The worker: it claims events, runs a team's handlers and settles each event once.

A team imports the names below, and errors from ``surelane_worker.errors``. Everything else is internal to the worker.
"""

from surelane import __version__
from surelane.events import Event
from surelane.jobs import Child, Continuation, Job
from surelane_worker.handling.asks import Answer
from surelane_worker.handling.bounds import Limit
from surelane_worker.handling.context import Context
from surelane_worker.handling.handler import Call, Given, Middleware
from surelane_worker.handling.outcomes import Await, Complete, Discard, FanOut, Outcome, Retry, Snooze
from surelane_worker.handling.registry import Handlers

__all__ = [
    "Answer",
    "Await",
    "Call",
    "Child",
    "Complete",
    "Context",
    "Continuation",
    "Discard",
    "Event",
    "FanOut",
    "Given",
    "Handlers",
    "Job",
    "Limit",
    "Middleware",
    "Outcome",
    "Retry",
    "Snooze",
    "__version__",
]
