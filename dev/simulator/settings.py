"""What can be set about the simulator. All of it comes from the environment; nothing has to be set."""

from datetime import timedelta
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from surelane_service.durations import Duration
from surelane_service.settings import Port

RETRY_DELAYS = (timedelta(0), timedelta(seconds=2), timedelta(seconds=10))
LOCALHOST = "127.0.0.1"


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def reached_at(host: str) -> str:
    """The URL, without a port, at which this machine reaches what listens on ``host``."""
    host = {"0.0.0.0": LOCALHOST, "::": "::1"}.get(host, host)
    return f"http://[{host}]" if ":" in host else f"http://{host}"


class SimulatorSettings(BaseSettings):
    """Read by ``python -m dev.simulator serve``."""

    model_config = SettingsConfigDict(
        env_ignore_empty=True, extra="ignore", frozen=True, populate_by_name=True
    )

    host: str = Field(LOCALHOST, validation_alias="SURELANE_HOST")
    port: Port = Field(8090, validation_alias="SURELANE_SIMULATOR_PORT")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", validation_alias="LOG_LEVEL")

    public_url: str | None = Field(None, validation_alias="SURELANE_SIMULATOR_URL")
    """Where others reach the simulator; response URLs begin with it. Default: host and port."""

    ingest_url: str = Field("http://127.0.0.1:8080", validation_alias="SURELANE_INGEST_URL")
    """Where events, commands and interactions are posted, without a path."""

    posting: bool = Field(True, validation_alias="SURELANE_SIMULATOR_POSTING")
    """``off`` where the app is a real one: it does not take what is signed with the demonstration's secret, and the
    simulator has no other."""

    hosts: Annotated[frozenset[str], NoDecode, BeforeValidator(_split)] = Field(
        frozenset(), validation_alias="SURELANE_SIMULATOR_HOSTS"
    )
    """Names by which the simulator is reached, beside ``localhost``, any address, and those of the settings above."""

    timeout: Duration = Field(timedelta(seconds=3), validation_alias="SURELANE_SIMULATOR_TIMEOUT")
    """How long an answer may take. Slack gives up after 3 seconds."""

    retry_delays: Annotated[tuple[Duration, ...], NoDecode, BeforeValidator(_split)] = Field(
        RETRY_DELAYS, max_length=3, validation_alias="SURELANE_SIMULATOR_RETRY_DELAYS"
    )
    """The wait before each of up to three retries; Slack's own are ``0s,1m,5m``."""

    subscriptions: Annotated[frozenset[str], NoDecode, BeforeValidator(_split)] = Field(
        frozenset({"app_mention", "message.im"}), validation_alias="SURELANE_SIMULATOR_SUBSCRIPTIONS"
    )
    """The events the app takes, by Slack's names; also known: ``message.channels``, ``reaction_added``."""

    scopes: Annotated[frozenset[str] | None, NoDecode, BeforeValidator(_split)] = Field(
        None, validation_alias="SURELANE_SIMULATOR_SCOPES"
    )
    """The bot token's scopes; a call that needs another fails with ``missing_scope``. Default: all."""

    operator_database_url: SecretStr | None = Field(None, validation_alias="SURELANE_OPERATOR_DATABASE_URL")
    database_url: SecretStr | None = Field(None, validation_alias="DATABASE_URL")

    @field_validator("ingest_url", "public_url")
    @classmethod
    def _http(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return value.rstrip("/") if value else value

    @property
    def names(self) -> frozenset[str]:
        """The host names that lead here."""
        given = urlsplit(self.public_url or "").hostname
        return self.hosts | {name.lower() for name in (given, self.host) if name}

    @property
    def queue_database_url(self) -> str | None:
        """Where the status of events is read from, if anywhere."""
        url = self.operator_database_url or self.database_url
        return url.get_secret_value() if url else None
