"""Surelane's errors. A class's docstring is its message unless one is given.

The clients raise these and no error of the driver. The driver's error is the cause (``__cause__``). PostgreSQL's errors
become ours by their SQLSTATE, which is the same over every driver.
"""
# ruff: noqa: N818 - a class is named for what happened

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from inspect import getdoc


class SurelaneError(Exception):
    """Surelane failed."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or getdoc(type(self)))


@dataclass(frozen=True, slots=True)
class Report:
    """What a server told about an error, without what quotes a row or a value.

    Attributes:
        sqlstate: PostgreSQL's five-character code of the reason.
        about: the object: ``schema.table``, a constraint, a column, or the function that raised it.
        meant: whether a function of the schema ``agent`` raised it on purpose: it refuses this very call.
        foreign: whether a function outside of the schema ``agent`` raised it, such as another program's trigger.
        call: our call that failed.
    """

    sqlstate: str | None = None
    about: str | None = None
    meant: bool = False
    foreign: bool = False
    call: str | None = None


NOTHING = Report()


class DatabaseUnavailable(SurelaneError):
    """The database cannot be reached, is read-only, or ended the call; the call changed nothing."""

    report: Report = NOTHING


class OutcomeUnknown(DatabaseUnavailable):
    """The connection broke, or time ran out, after the call was sent: it may have taken effect."""


class DatabaseRefused(SurelaneError):
    """The database refused the call; the call changed nothing.

    Attributes:
        sqlstate: PostgreSQL's five-character code of the reason.
        report: all that the server told about it.
    """

    report: Report = NOTHING

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
    known = isinstance(error, DatabaseUnavailable | DatabaseRefused)
    return known and not refuses_call(error) and not isinstance(error, about_the_call)


def refuses_call(error: BaseException) -> bool:
    """Return whether the call itself is refused: its own values, or a rule of ours. Any other failure is an outage.

    Another transaction's lock refuses no call, and neither does a constraint that is none of ours.
    """
    if waits(error):
        return False
    return isinstance(error, InvalidInput) or (isinstance(error, DatabaseRefused) and error.report.meant)


def waits(error: BaseException) -> bool:
    """Return whether another transaction is in the way of a call: it may succeed a moment later."""
    return isinstance(error, Conflict) and error.sqlstate != UNIQUE


def described(error: BaseException) -> dict[str, str]:
    """Return the fields of a log line about a failed call: the error, its SQLSTATE, message, object and call.

    The message of a refused value may quote it, and is left out.
    """
    report = getattr(error, "report", NOTHING)
    quotes = isinstance(error, InvalidInput) or not isinstance(error, SurelaneError)
    fields = {
        "error": type(error).__name__,
        "sqlstate": report.sqlstate,
        "reason": None if quotes else _first_line(error),
        "object": report.about,
        "call": report.call,
    }
    return {name: value for name, value in fields.items() if value}


def told(error: BaseException) -> str:
    """Return the same for people, in one line: ``Forbidden: permission denied for … (42501, in agent.settle)``."""
    known = described(error)
    details = [known[name] for name in ("sqlstate", "object") if name in known]
    details += [f"in {known['call']}"] if "call" in known else []
    text = ": ".join(known[name] for name in ("error", "reason") if name in known)
    return f"{text} ({', '.join(details)})" if details else text


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:MOST_SHOWN] if lines else ""


class UnsupportedConnection(SurelaneError, TypeError):
    """The object is no connection that the queue can use."""


class EncryptionFailed(SurelaneError):
    """A value cannot be encrypted or decrypted with the keys that are there; the call changed nothing."""


class SettingsError(SurelaneError):
    """A setting is missing or has a value that cannot be used."""


class NotMeasured(SurelaneError):
    """The queue is being measured for the first time."""


INSTALL = "pip install --find-links DIRECTORY"
"""How our packages are installed: from a directory with their wheels, because no index has them."""
MOST_SHOWN = 300
"""Characters of a message that a log line shows."""
UNIQUE = "23505"
CONTENT = frozenset(
    {
        *("22000", "22003", "22007", "22008", "22009", "22015", "22021", "22023", "22030", "22032"),
        *("22P02", "22P05", "54000", "54001"),
    }
)
"""The SQLSTATEs that a call's own values may cause: no JSON, no text of the encoding, too large, out of range.

asyncpg raises 22000 itself, of an argument that it cannot send. Each other code tells of the server: its state, its
settings, its schema and the rights in it, or constraints, triggers and indexes that others added.
"""
_TOO_LARGE = "54000"
"""In a function, a value is too large. Without one, at the commit, the queue of notifications is full."""
_AWAY = ("08", "28", "3D", "53", "57")
"""Classes of errors of a server that is away, going away, coming back, or out of connections."""
_AWAY_TOO = ("25006", "25P03", "25P04")
"""A standby, or a server that was set to refuse writes; a session that the server ended."""
_OUT_OF_MEMORY = "53200"
"""Not away: one large statement may get none while others do."""
_BY_SQLSTATE: dict[str, type[DatabaseRefused]] = {
    "25P02": TransactionAborted,
    "40P01": TransientConflict,
    "40001": TransientConflict,
    UNIQUE: Conflict,
    "55P03": Conflict,
    "42501": Forbidden,
    "42703": SchemaMissing,
    "42883": SchemaMissing,
    "42P01": SchemaMissing,
    "3F000": SchemaMissing,
}
_UNKNOWN_CLASSES = ("08", "57")
_COMPLETION_UNKNOWN = "40003"
_ENDS_SESSION = ("FATAL", "PANIC")
_RAISING = re.compile(r"PL/pgSQL.*?([\w$\".]+)\(")
_CALLED = re.compile(r"\bagent\.\w+")
_OURS = "agent."


def report_of(sqlstate: str, context: str | None, objects: Sequence[str | None], query: str = "") -> Report:
    """Return what a server told about an error.

    Args:
        context: where it was raised, innermost first. Its lines may quote values.
        objects: the names of the schema, the table, the column and the constraint, where it names them.
        query: the call that failed.
    """
    lines = [line for line in (context or "").splitlines() if "PL/pgSQL" in line]
    raising = _RAISING.search(lines[0]) if lines else None
    function = raising[1] if raising else None
    called = _CALLED.search(query)
    return Report(
        sqlstate,
        ".".join(each for each in objects if each) or function,
        bool(function and function.startswith(_OURS) and lines[0].endswith("RAISE")),
        bool(function and not function.startswith((_OURS, "pg_catalog.", "inline_code_block"))),
        called[0] if called else query[:40].strip() or None,
    )


def of_server(
    message: str, sqlstate: str, severity: str | None, *, uncertain: bool, report: Report = NOTHING
) -> SurelaneError:
    """Return our error for an error that the server reported, by its SQLSTATE and its severity in English.

    ``message`` lacks the details that quote the row. ``uncertain``: the call was sent outside of a transaction, so a
    break leaves its outcome unknown.
    """
    error: DatabaseUnavailable | DatabaseRefused
    if uncertain and _may_follow_a_commit(sqlstate, severity):
        error = OutcomeUnknown(message)
    elif (sqlstate[:2] in _AWAY or sqlstate in _AWAY_TOO) and sqlstate != _OUT_OF_MEMORY:
        error = DatabaseUnavailable(message)
    elif sqlstate in CONTENT and not report.foreign and (sqlstate != _TOO_LARGE or report.about):
        error = InvalidInput(message, sqlstate)
    else:
        error = _BY_SQLSTATE.get(sqlstate, DatabaseRefused)(message, sqlstate)
    error.report = report if report.sqlstate else replace(report, sqlstate=sqlstate or None)
    return error


def of_connection(message: str, *, uncertain: bool, call: str | None = None) -> SurelaneError:
    """Return our error for a connection that broke, or that could not be made."""
    error = (OutcomeUnknown if uncertain else DatabaseUnavailable)(message)
    error.report = Report(call=call)
    return error


def _may_follow_a_commit(sqlstate: str, severity: str | None) -> bool:
    """Return whether an error may come after the commit.

    An ``ERROR`` rolls back. The end of a session may follow a commit, and so may a cancel request that arrives late.
    """
    return severity in _ENDS_SESSION or sqlstate[:2] in _UNKNOWN_CLASSES or sqlstate == _COMPLETION_UNKNOWN
