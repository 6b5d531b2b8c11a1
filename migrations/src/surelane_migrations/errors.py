"""Define the errors of a migration, each with the command's exit code. Every message says what to do next."""


class MigrationError(Exception):
    """A migration failed; the database is as it was before."""

    exit_code = 1


class MigrationSettingsError(MigrationError):
    """A setting is missing or cannot be used."""

    exit_code = 2


class UnreachableError(MigrationError):
    """The database cannot be reached, or went away."""

    exit_code = 3


class AbsentError(UnreachableError):
    """The database or its schema is not there yet: waiting may help."""


class IncompatibleError(MigrationError):
    """The database's schema is newer than this release or no longer serves it, or its server is too old."""

    exit_code = 4


class LockedError(MigrationError):
    """Another session holds a lock that a migration needs."""

    exit_code = 5


class DeadlockError(LockedError):
    """The migration and a running service waited for each other's locks, and the server ended the migration."""


class ForbiddenError(MigrationError):
    """This role may not do that: it does not own the schema, or lacks a privilege."""

    exit_code = 6


class DifferentError(MigrationError):
    """The database and the scripts disagree about what was applied."""

    exit_code = 7


class ScriptsError(MigrationError):
    """The script directories break a rule."""

    exit_code = 8


class WaitTimedOutError(MigrationError):
    """The schema did not reach this release in time."""

    exit_code = 9
