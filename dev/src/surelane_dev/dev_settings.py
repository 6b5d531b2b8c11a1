"""Read the settings of `surelane dev` from the environment, and pass the services' own on to them."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from surelane_dev.simulator.simulator_settings import LOCALHOST, reached_at
from surelane_service.common.durations import Duration
from surelane_service.service_settings import Port


class DevSettings(BaseSettings):
    """The settings of `surelane dev`. If a port is not set and its default is taken, a free one replaces it."""

    model_config = SettingsConfigDict(env_ignore_empty=True, extra="ignore", frozen=True)

    database_url: SecretStr | None = Field(None, validation_alias="SURELANE_DEV_DATABASE_URL")
    """A database of your own. It is migrated and used with this URI's role, and no PostgreSQL is started.

    ``DATABASE_URL`` is not read: it names the database of a deployment, which must not be migrated by accident.
    """

    data_dir: Path = Field(Path(".surelane/postgres"), validation_alias="SURELANE_DATA_DIR")
    """The directory of the embedded PostgreSQL's data and of the simulator's conversations."""

    host: str = Field(LOCALHOST, validation_alias="SURELANE_HOST")
    port: Port | None = Field(None, validation_alias="SURELANE_PORT")
    private_port: Port | None = Field(None, validation_alias="SURELANE_PRIVATE_PORT")
    operator_port: Port | None = Field(None, validation_alias="SURELANE_OPERATOR_PORT")
    worker_private_port: Port | None = Field(None, validation_alias="SURELANE_WORKER_PRIVATE_PORT")
    simulator_port: Port | None = Field(None, validation_alias="SURELANE_SIMULATOR_PORT")

    drain_timeout: Duration = Field(timedelta(seconds=30), validation_alias="SURELANE_DRAIN_TIMEOUT")
    """The time in which ingest and the worker may finish their requests and handlers."""

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine reach the ports."""
        return self.host in {LOCALHOST, "::1", "localhost"}

    @property
    def url(self) -> str:
        """The URL that reaches the ports from this machine, without a port."""
        return reached_at(self.host)
