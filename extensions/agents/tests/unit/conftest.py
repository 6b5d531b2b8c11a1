"""Give the tests a database in virtual time, and the queue of tests/sql: emptied before each test."""

from tests.fleet.conftest import virtual_database
from tests.sql.conftest import connect, kept_connections, other, queue, queue_database

__all__ = ["connect", "kept_connections", "other", "queue", "queue_database", "virtual_database"]
