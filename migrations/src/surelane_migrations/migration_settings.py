"""Read the command's settings from the environment."""

from datetime import timedelta

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from surelane_migrations.common.durations import Duration
from surelane_migrations.common.secret_files import SecretFileError, read_secrets
from surelane_migrations.errors import MigrationSettingsError


class LockSettings(BaseSettings):
    """How long a migration waits for its database and its locks."""

    model_config = SettingsConfigDict(
        env_ignore_empty=True, extra="ignore", frozen=True, populate_by_name=True
    )

    attempts: int = Field(default=10, ge=1, validation_alias="SURELANE_MIGRATION_LOCK_ATTEMPTS")
    """How many times to try the advisory lock."""

    delay: Duration = Field(default=timedelta(seconds=10), validation_alias="SURELANE_MIGRATION_LOCK_DELAY")
    """The pause between two attempts, outside any transaction."""

    timeout: Duration = Field(
        default=timedelta(seconds=5), validation_alias="SURELANE_MIGRATION_LOCK_TIMEOUT"
    )
    """The longest time that a statement, also of a script, may wait for a table's lock."""

    connect: Duration = Field(
        default=timedelta(minutes=2), validation_alias="SURELANE_MIGRATION_CONNECT_TIMEOUT"
    )
    """How long to wait for a database that is not there yet, because deployments start both at once."""

    @property
    def timeout_ms(self) -> int:
        """Return ``timeout`` in milliseconds for ``lock_timeout``, at least 1, because 0 means no limit."""
        return max(1, round(self.timeout.total_seconds() * 1000))


class DatabaseSettings(BaseSettings):
    """The database's address."""

    model_config = SettingsConfigDict(env_ignore_empty=True, frozen=True)

    database_url: SecretStr = Field(default=SecretStr(""), validation_alias="DATABASE_URL")
    """Any libpq URI, including the Unix-socket form ``postgresql://user@/name?host=/dir``."""


def load_database_url() -> str:
    """Read ``DATABASE_URL``.

    Raises:
        MigrationSettingsError: it is not set, or the file of ``DATABASE_URL_FILE`` cannot be used.
    """
    try:
        read = read_secrets(["DATABASE_URL"])
    except SecretFileError as error:
        raise MigrationSettingsError(str(error)) from None
    url = read.get("DATABASE_URL") or DatabaseSettings().database_url.get_secret_value()
    if not url:
        raise MigrationSettingsError(
            "DATABASE_URL is not set; set it to a URI such as postgresql://surelane@host/surelane"
        )
    return url


def load_lock_settings() -> LockSettings:
    """Read the ``SURELANE_MIGRATION_LOCK_…`` settings.

    Raises:
        MigrationSettingsError: a setting cannot be used; the message names each, with the reason.
    """
    try:
        return LockSettings()
    except ValidationError as error:
        problems = "; ".join(f"{problem['loc'][0]}: {problem['msg']}" for problem in error.errors())
        raise MigrationSettingsError(f"settings cannot be used: {problems}") from None
