"""Surelane: a durable event queue for Slack agents on PostgreSQL. This package is its client.

A program puts jobs into the queue with :class:`Queue`, on its own asyncpg connection or pool.
"""

from importlib.metadata import version

from surelane.errors import (
    Conflict,
    DatabaseRefused,
    DatabaseUnavailable,
    Forbidden,
    InvalidInput,
    OutcomeUnknown,
    SchemaMissing,
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
    "OutcomeUnknown",
    "Queue",
    "SchemaMissing",
    "SurelaneError",
    "TransientConflict",
    "__version__",
]

__version__ = version("surelane")
