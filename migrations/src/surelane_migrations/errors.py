"""Define the errors of a migration, each with the command's exit code. Every message says what to do next."""

from enum import IntEnum


class Exit(IntEnum):
    """The exit codes of ``python -m surelane_migrations``."""

    OK = 0
    FAILED = 1
    SETTINGS = 2
    UNREACHABLE = 3
    INCOMPATIBLE = 4
    LOCKED = 5
    FORBIDDEN = 6
    DIFFERENT = 7
    SCRIPTS = 8
    TIMED_OUT = 9


class MigrationError(Exception):
    """A migration failed; the database is as it was before."""

    exit_code = Exit.FAILED


class SettingsError(MigrationError):
    """A setting is missing or cannot be used."""

    exit_code = Exit.SETTINGS


class UnreachableError(MigrationError):
    """The database cannot be reached, or went away."""

    exit_code = Exit.UNREACHABLE


class AbsentError(UnreachableError):
    """The database is not there yet: its name is unknown, it refuses connections, or it is starting."""


class IncompatibleError(MigrationError):
    """The database's schema is newer than this release or no longer serves it, or its server is too old."""

    exit_code = Exit.INCOMPATIBLE


class LockedError(MigrationError):
    """Another session holds a lock that a migration needs."""

    exit_code = Exit.LOCKED


class DeadlockError(LockedError):
    """The migration and a running service waited for each other's locks, and the server ended the migration."""


class ForbiddenError(MigrationError):
    """This role may not do that: it does not own the schema, or lacks a privilege."""

    exit_code = Exit.FORBIDDEN


class DifferentError(MigrationError):
    """The database and the scripts disagree about what was applied."""

    exit_code = Exit.DIFFERENT


class ScriptsError(MigrationError):
    """The script directories break a rule."""

    exit_code = Exit.SCRIPTS


class WaitTimedOutError(MigrationError):
    """The schema did not reach this release in time."""

    exit_code = Exit.TIMED_OUT
