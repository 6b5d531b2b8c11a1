"""Surelane: a durable event queue for Slack agents on PostgreSQL. This package is its client.

A program puts jobs into the queue with :class:`Queue`, on its own connection.
"""

from importlib.metadata import version

from surelane.errors import (
    Conflict,
    DatabaseRefused,
    DatabaseUnavailable,
    EncryptionFailed,
    Forbidden,
    InvalidInput,
    OutcomeUnknown,
    SchemaMissing,
    SurelaneError,
    TransactionAborted,
    TransientConflict,
    UnsupportedConnection,
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
    "EncryptionFailed",
    "Event",
    "Forbidden",
    "Inserted",
    "InvalidInput",
    "Job",
    "OutcomeUnknown",
    "Queue",
    "SchemaMissing",
    "SurelaneError",
    "TransactionAborted",
    "TransientConflict",
    "UnsupportedConnection",
    "__version__",
]

__version__ = version("surelane")
