"""Read the settings of `make up` from the environment, and pass the services' own on to them."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from dev.simulator.settings import LOCALHOST, reached_at
from surelane_service.durations import Duration
from surelane_service.settings import Port

ROOT = Path(__file__).resolve().parent.parent


class UpSettings(BaseSettings):
    """Settings of the whole system on one machine. A port that is not set may move to a free one."""

    model_config = SettingsConfigDict(env_ignore_empty=True, extra="ignore", frozen=True)

    database_url: SecretStr | None = Field(None, validation_alias="DATABASE_URL")
    """A database of your own, migrated and used as this URI's role; no PostgreSQL is started then."""

    data_dir: Path = Field(ROOT / ".surelane" / "postgres", validation_alias="SURELANE_DATA_DIR")
    """Where the embedded PostgreSQL keeps its data."""

    host: str = Field(LOCALHOST, validation_alias="SURELANE_HOST")
    port: Port | None = Field(None, validation_alias="SURELANE_PORT")
    private_port: Port | None = Field(None, validation_alias="SURELANE_PRIVATE_PORT")
    worker_private_port: Port | None = Field(None, validation_alias="SURELANE_WORKER_PRIVATE_PORT")
    simulator_port: Port | None = Field(None, validation_alias="SURELANE_SIMULATOR_PORT")

    drain_timeout: Duration = Field(timedelta(seconds=30), validation_alias="SURELANE_DRAIN_TIMEOUT")
    """How long ingest and the worker may take to finish what they hold."""

    @property
    def url(self) -> str:
        """Where the ports are reached from this machine, without a port."""
        return reached_at(self.host)
