"""PostgreSQL's errors as ours, by their SQLSTATE. Every driver reports the same codes."""

from surelane import errors

_AWAY = ("08", "28", "3D", "53", "57")
"""Classes of errors of a server that is away, going away, coming back, or out of connections."""
_READ_ONLY = "25006"
"""A standby, or a server that was set to refuse writes."""
_BY_SQLSTATE: dict[str, type[errors.DatabaseRefused]] = {
    "25P02": errors.TransactionAborted,
    "40P01": errors.TransientConflict,
    "40001": errors.TransientConflict,
    "23505": errors.Conflict,
    "55P03": errors.Conflict,
    "42501": errors.Forbidden,
    "42883": errors.SchemaMissing,
    "42P01": errors.SchemaMissing,
    "3F000": errors.SchemaMissing,
}
_BY_CLASS: dict[str, type[errors.DatabaseRefused]] = {
    "22": errors.InvalidInput,
    "23": errors.InvalidInput,
    "54": errors.InvalidInput,
}
_UNKNOWN_CLASSES = ("08", "57")
_COMPLETION_UNKNOWN = "40003"
_ENDS_SESSION = ("FATAL", "PANIC")


def of_server(message: str, sqlstate: str, severity: str | None, *, uncertain: bool) -> errors.SurelaneError:
    """Return our error for an error that the server reported.

    Args:
        message: the error's message, without the details that quote the row.
        sqlstate: its code.
        severity: its severity in English.
        uncertain: the call was sent outside of a transaction, so a break leaves its outcome unknown.
    """
    if uncertain and _may_follow_a_commit(sqlstate, severity):
        return errors.OutcomeUnknown(message)
    if sqlstate[:2] in _AWAY or sqlstate == _READ_ONLY:
        return errors.DatabaseUnavailable(message)
    by_class = _BY_CLASS.get(sqlstate[:2], errors.DatabaseRefused)
    return _BY_SQLSTATE.get(sqlstate, by_class)(message, sqlstate)


def of_connection(message: str, *, uncertain: bool) -> errors.SurelaneError:
    """Return our error for a connection that broke, or that could not be made."""
    return (errors.OutcomeUnknown if uncertain else errors.DatabaseUnavailable)(message)


def _may_follow_a_commit(sqlstate: str, severity: str | None) -> bool:
    """Return whether an error may come after the commit.

    An ``ERROR`` rolls back. The end of a session may follow a commit, and so may a cancel request that arrives late.
    """
    return severity in _ENDS_SESSION or sqlstate[:2] in _UNKNOWN_CLASSES or sqlstate == _COMPLETION_UNKNOWN
