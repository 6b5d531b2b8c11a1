"""The worker: it claims events, runs a team's handlers and settles each event once.

A team imports the names below. Everything else is internal to the worker.
"""

from surelane import __version__
from surelane.events import Event
from surelane.jobs import Child, Continuation, Job
from surelane_worker.handling.answers import AnswerError
from surelane_worker.handling.asks import Answer
from surelane_worker.handling.bounds import Limit
from surelane_worker.handling.children import ChildError
from surelane_worker.handling.context import Context
from surelane_worker.handling.handler import Call, Given, HandlersError, Middleware
from surelane_worker.handling.outcomes import Await, Complete, Discard, FanOut, Outcome, Retry, Snooze
from surelane_worker.handling.progress import TagError
from surelane_worker.handling.registry import Handlers
from surelane_worker.handling.shapes import StepMismatchError
from surelane_worker.handling.steps import StepError

__all__ = [
    "Answer",
    "AnswerError",
    "Await",
    "Call",
    "Child",
    "ChildError",
    "Complete",
    "Context",
    "Continuation",
    "Discard",
    "Event",
    "FanOut",
    "Given",
    "Handlers",
    "HandlersError",
    "Job",
    "Limit",
    "Middleware",
    "Outcome",
    "Retry",
    "Snooze",
    "StepError",
    "StepMismatchError",
    "TagError",
    "__version__",
]
