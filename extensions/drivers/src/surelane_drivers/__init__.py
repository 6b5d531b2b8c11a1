"""Surelane's queue on the connections that a program has: psycopg, SQLAlchemy, Django.

``surelane.Queue`` finds this package for their asynchronous connections. :class:`SyncQueue` is for synchronous ones.
"""

from surelane_drivers.sync_queue import SyncQueue

__all__ = ["SyncQueue"]
