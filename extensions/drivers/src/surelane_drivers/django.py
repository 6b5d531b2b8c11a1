"""The driver for Django's connections, over psycopg."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError, atomic
from django.db.utils import Error
from django.utils.connection import ConnectionProxy

from surelane.drivers import Driver, Row
from surelane.errors import SurelaneError, TransactionAborted, UnsupportedConnection, of_connection
from surelane_drivers.arguments import positional
from surelane_drivers.psycopg import DRIVER_ERRORS, translated


def sync_driver(database: object) -> Driver | None:
    """Return the driver for a connection, or for the proxy of each thread's; ``None`` on anything else."""
    return DjangoDriver(database) if isinstance(database, BaseDatabaseWrapper | ConnectionProxy) else None


class DjangoDriver:
    """Calls on a connection, inside its ``atomic`` block if there is one."""

    def __init__(self, connection: BaseDatabaseWrapper | ConnectionProxy) -> None:
        self._connection = connection

    async def fetch(self, query: str, *arguments: object) -> Sequence[Row]:
        connection, uncertain = self._connection, False
        if connection.vendor != "postgresql" or connection.Database.__name__ != "psycopg":
            raise UnsupportedConnection(
                f"Django over {connection.Database.__name__}: the queue needs PostgreSQL over psycopg 3"
            )
        try:
            uncertain = connection.get_autocommit()
            with connection.cursor() as cursor:
                cursor.execute(positional(query), arguments)
                names = [column.name for column in cursor.description]
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        except (Error, UnicodeError) as error:
            raise _translated(error, uncertain=uncertain) from error.__cause__ or error

    @contextmanager
    def transaction(self) -> Iterator[BaseDatabaseWrapper | ConnectionProxy]:
        """Open a transaction, and yield its connection, which is closed with it if this opened it.

        Each thread has a connection of its own: a thread that ends would leave it open.
        """
        opens = self._connection.connection is None
        try:
            with atomic(using=self._connection.alias, durable=True):
                yield self._connection
        finally:
            if opens:
                self._connection.close()


def _translated(error: Error | UnicodeError, *, uncertain: bool) -> SurelaneError:
    """Return our error for one of Django's, whose cause is psycopg's unless Django itself refused the call."""
    if isinstance(error, TransactionManagementError):
        return TransactionAborted()
    found = error.__cause__ or error
    if isinstance(found, DRIVER_ERRORS):
        return translated(found, uncertain=uncertain)
    return of_connection(f"{type(error).__name__}: {error}", uncertain=uncertain)
