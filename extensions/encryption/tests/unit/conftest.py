"""Give tests the queue of tests/sql: one migrated database, emptied before each test."""

from tests.sql.conftest import connect, kept_connections, queue, queue_database, service

__all__ = ["connect", "kept_connections", "queue", "queue_database", "service"]
