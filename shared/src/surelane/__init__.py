"""Surelane: a durable event queue for Slack agents on PostgreSQL.

This package is what the services share: events as values, the queue client, settings, telemetry and lifecycle.
"""

from importlib.metadata import version

from surelane.errors import (
    Conflict,
    DatabaseRefused,
    DatabaseUnavailable,
    Forbidden,
    InvalidInput,
    NotMeasured,
    OutcomeUnknown,
    SurelaneError,
    TransientConflict,
)
from surelane.events import Event, Inserted
from surelane.jobs import Child, Continuation, Job
from surelane.queue import Queue

__all__ = [
    "Child",
    "Conflict",
    "Continuation",
    "DatabaseRefused",
    "DatabaseUnavailable",
    "Event",
    "Forbidden",
    "Inserted",
    "InvalidInput",
    "Job",
    "NotMeasured",
    "OutcomeUnknown",
    "Queue",
    "SurelaneError",
    "TransientConflict",
    "__version__",
]

__version__ = version("surelane")
