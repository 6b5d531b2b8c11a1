"""Surelane's errors. A class's docstring is its message unless one is given.

The clients raise these and no error of the driver. The driver's error is the cause (``__cause__``).
"""
# ruff: noqa: N818 - a class is named for what happened

from inspect import getdoc


class SurelaneError(Exception):
    """Surelane failed."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or getdoc(type(self)))


class DatabaseUnavailable(SurelaneError):
    """The database cannot be reached, is read-only, or ended the call; the call changed nothing."""


class OutcomeUnknown(DatabaseUnavailable):
    """The connection broke, or time ran out, after the call was sent: it may have taken effect."""


class DatabaseRefused(SurelaneError):
    """The database refused the call; the call changed nothing.

    Attributes:
        sqlstate: PostgreSQL's five-character code of the reason.
    """

    def __init__(self, message: str | None = None, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class InvalidInput(DatabaseRefused, ValueError):
    """A value cannot be stored; the call changed nothing."""


IN_TRANSACTION = "the connection is in a transaction already: give a connection outside of a transaction"


class Conflict(DatabaseRefused):
    """Another transaction, or an event under the same key, conflicts with the call; it changed nothing."""


class TransientConflict(Conflict):
    """PostgreSQL ended the call to resolve a deadlock or a race: send it again; it changed nothing."""


class TransactionAborted(DatabaseRefused):
    """An earlier statement of this transaction failed: roll it back first. The call changed nothing."""


class Forbidden(DatabaseRefused):
    """The connection's role may not do this."""


class SchemaMissing(DatabaseRefused):
    """The database has no schema of this release."""


def blames_server(error: Exception) -> bool:
    """Return whether the server's state made a call fail, and not the call: it may succeed later, or elsewhere."""
    about_the_call = InvalidInput | Conflict | TransactionAborted
    return isinstance(error, DatabaseUnavailable | DatabaseRefused) and not isinstance(error, about_the_call)


class UnsupportedConnection(SurelaneError, TypeError):
    """The object is no connection that the queue can use."""


class EncryptionFailed(SurelaneError):
    """A value cannot be encrypted or decrypted with the keys that are there; the call changed nothing."""


class SettingsError(SurelaneError):
    """A setting is missing or has a value that cannot be used."""


class NotMeasured(SurelaneError):
    """The queue is being measured for the first time."""
