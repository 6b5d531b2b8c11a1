"""Surelane: a durable event queue for Slack agents on PostgreSQL.

This package is what the services share: events as values, the queue client, settings, telemetry and lifecycle.
"""

from importlib.metadata import version

from surelane.errors import SurelaneError
from surelane.events import Event
from surelane.jobs import Job
from surelane.queue import Queue

__all__ = ["Event", "Job", "Queue", "SurelaneError", "__version__"]

__version__ = version("surelane")
