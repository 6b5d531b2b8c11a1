"""Read the simulator's settings from the environment. None is required."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode

from surelane_dev.simulator.webapi.tiers import Enforced
from surelane_service.common.durations import Duration
from surelane_service.manifest import MANIFEST
from surelane_service.service_settings import DEMO_CLIENT_ID, FROM_ENVIRONMENT, Port, split

RETRY_DELAYS = (timedelta(0), timedelta(seconds=2), timedelta(seconds=10))
LOCALHOST = "127.0.0.1"
FAKE_MODEL = "fake"
"""The value of ``SURELANE_MODEL`` for which `surelane dev` and tests use the simulator's model."""
FAKE_MODEL_PATH = "/model/v1"


def reached_at(host: str) -> str:
    """Return the URL, without a port, at which this machine reaches a listener on ``host``."""
    host = {"0.0.0.0": LOCALHOST, "::": "::1"}.get(host, host)
    return f"http://[{host}]" if ":" in host else f"http://{host}"


class SimulatorSettings(BaseSettings):
    """The settings of ``python -m surelane_dev.simulator serve``."""

    model_config = FROM_ENVIRONMENT

    host: str = LOCALHOST
    port: Port = Field(8090, validation_alias="SURELANE_SIMULATOR_PORT")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", validation_alias="LOG_LEVEL")

    public_url: str | None = Field(None, validation_alias="SURELANE_SIMULATOR_URL")
    """The simulator's address for others; response URLs begin with it. Default: host and port."""

    ingest_url: str = "http://127.0.0.1:8080"
    """Ingest's address, without a path. Events, commands and interactions are posted there."""

    browser_ingest_url: str | None = Field(None, validation_alias="SURELANE_SIMULATOR_INGEST_URL")
    """Ingest's address for people's browsers, where links to install the app lead. Default: the address above."""

    posting: bool = Field(True, validation_alias="SURELANE_SIMULATOR_POSTING")
    """``off`` for a real app: it refuses requests signed with the demo secret, and the simulator has no other."""

    hosts: Annotated[frozenset[str], NoDecode, BeforeValidator(split)] = Field(
        frozenset(), validation_alias="SURELANE_SIMULATOR_HOSTS"
    )
    """Further host names of the simulator, beside ``localhost``, any address, and those of the settings above."""

    timeout: Duration = Field(timedelta(seconds=3), validation_alias="SURELANE_SIMULATOR_TIMEOUT")
    """The longest time for an answer. Slack gives up after 3 seconds."""

    retry_delays: Annotated[tuple[Duration, ...], NoDecode, BeforeValidator(split)] = Field(
        RETRY_DELAYS, max_length=3, validation_alias="SURELANE_SIMULATOR_RETRY_DELAYS"
    )
    """The wait before each of up to three retries; Slack's own are ``0s,1m,5m``."""

    manifest: Path | None = Field(None, validation_alias=MANIFEST)
    """The app's manifest, in YAML or JSON. Default: the documented one, with all scopes."""

    state: Path | None = Field(None, validation_alias="SURELANE_SIMULATOR_STATE")
    """A file that keeps the conversations over restarts. Default: none, they end with the simulator."""

    subscriptions: Annotated[frozenset[str] | None, NoDecode, BeforeValidator(split)] = Field(
        None, validation_alias="SURELANE_SIMULATOR_SUBSCRIPTIONS"
    )
    """The app's subscriptions, by Slack's names; default: the manifest's. ``message.channels`` is known too."""

    scopes: Annotated[frozenset[str] | None, NoDecode, BeforeValidator(split)] = Field(
        None, validation_alias="SURELANE_SIMULATOR_SCOPES"
    )
    """The bot token's scopes; a call that needs another fails with ``missing_scope``. Default: the manifest's."""

    client_id: str | None = Field(None, validation_alias="SLACK_CLIENT_ID")
    """The app's client id. With the demo id, each workspace installs the app, as ingest then demands."""

    tiers: Enforced = Field("off", validation_alias="SURELANE_SIMULATOR_TIERS")
    """Whether calls above Slack's rate limits are refused. ``non-marketplace``: also the limits of such apps."""

    token_lives: Duration | None = Field(None, validation_alias="SURELANE_SIMULATOR_TOKEN_LIVES")
    """How long tokens of installs by OAuth live; Slack's own ``12h``. Default: they do not expire."""

    operator_database_url: SecretStr | None = None
    database_url: SecretStr | None = Field(None, validation_alias="DATABASE_URL")

    @field_validator("ingest_url", "public_url", "browser_ingest_url")
    @classmethod
    def _http(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return value.rstrip("/") if value else value

    @property
    def names(self) -> frozenset[str]:
        given = urlsplit(self.public_url or "").hostname
        return self.hosts | {name.lower() for name in (given, self.host) if name}

    @property
    def install_url(self) -> str:
        """Where a person begins an install of the app."""
        return f"{self.browser_ingest_url or self.ingest_url}/slack/install"

    @property
    def installs(self) -> bool:
        """Whether each workspace installs the app by OAuth. The demo workspace does it by itself."""
        return self.client_id == DEMO_CLIENT_ID

    @property
    def queue_database_url(self) -> str | None:
        """The database with the status of events; ``None`` if there is none."""
        url = self.operator_database_url or self.database_url
        return url.get_secret_value() if url else None
