"""Every error that Surelane raises on purpose. A class's docstring is its message unless one is given."""

from inspect import getdoc


class SurelaneError(Exception):
    """Surelane failed."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or getdoc(type(self)))


class DatabaseUnavailableError(SurelaneError):
    """The database did not answer in time; nothing is known to have been stored."""


class SchemaVersionError(SurelaneError):
    """The database's schema does not serve this version of Surelane."""


class SettingsError(SurelaneError):
    """A setting is missing or has a value that cannot be used."""


class NotMeasuredError(SurelaneError):
    """The queue is being measured for the first time."""
