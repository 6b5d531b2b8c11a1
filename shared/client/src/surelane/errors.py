"""Surelane's errors. A class's docstring is its message unless one is given.

The clients raise these and no error of the driver. The driver's error is the cause (``__cause__``). PostgreSQL's errors
become ours by their SQLSTATE, which is the same over every driver.
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


_AWAY = ("08", "28", "3D", "53", "57")
"""Classes of errors of a server that is away, going away, coming back, or out of connections."""
_READ_ONLY = "25006"
"""A standby, or a server that was set to refuse writes."""
_BY_SQLSTATE: dict[str, type[DatabaseRefused]] = {
    "25P02": TransactionAborted,
    "40P01": TransientConflict,
    "40001": TransientConflict,
    "23505": Conflict,
    "55P03": Conflict,
    "42501": Forbidden,
    "42883": SchemaMissing,
    "42P01": SchemaMissing,
    "3F000": SchemaMissing,
}
_BY_CLASS: dict[str, type[DatabaseRefused]] = {"22": InvalidInput, "23": InvalidInput, "54": InvalidInput}
_UNKNOWN_CLASSES = ("08", "57")
_COMPLETION_UNKNOWN = "40003"
_ENDS_SESSION = ("FATAL", "PANIC")


def of_server(message: str, sqlstate: str, severity: str | None, *, uncertain: bool) -> SurelaneError:
    """Return our error for an error that the server reported, by its SQLSTATE and its severity in English.

    ``message`` lacks the details that quote the row. ``uncertain``: the call was sent outside of a transaction, so a
    break leaves its outcome unknown.
    """
    if uncertain and _may_follow_a_commit(sqlstate, severity):
        return OutcomeUnknown(message)
    if sqlstate[:2] in _AWAY or sqlstate == _READ_ONLY:
        return DatabaseUnavailable(message)
    by_class = _BY_CLASS.get(sqlstate[:2], DatabaseRefused)
    return _BY_SQLSTATE.get(sqlstate, by_class)(message, sqlstate)


def of_connection(message: str, *, uncertain: bool) -> SurelaneError:
    """Return our error for a connection that broke, or that could not be made."""
    return (OutcomeUnknown if uncertain else DatabaseUnavailable)(message)


def _may_follow_a_commit(sqlstate: str, severity: str | None) -> bool:
    """Return whether an error may come after the commit.

    An ``ERROR`` rolls back. The end of a session may follow a commit, and so may a cancel request that arrives late.
    """
    return severity in _ENDS_SESSION or sqlstate[:2] in _UNKNOWN_CLASSES or sqlstate == _COMPLETION_UNKNOWN
