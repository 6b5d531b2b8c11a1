"""Settings that every service has. Each service adds its own in its ``settings`` module.

Settings come from the environment alone. Where a standard name exists it is used (``DATABASE_URL``, ``LOG_LEVEL``,
``OTEL_*``); ours begin with ``SURELANE_``. Secrets are ``SecretStr``: they never show in a log or a traceback.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from surelane.errors import SettingsError

Port = Annotated[int, Field(ge=0, le=65535)]

SLACK_API_URL = "https://slack.com/api/"
DEMO_SIGNING_SECRET = "surelane-demo-signing-secret"  # noqa: S105 - public on purpose, refused against Slack itself


class ServiceSettings(BaseSettings):
    """What ingest and worker both read."""

    model_config = SettingsConfigDict(
        env_ignore_empty=True, extra="ignore", frozen=True, populate_by_name=True
    )

    database_url: SecretStr = Field(validation_alias="DATABASE_URL")
    """Any libpq URI, the Unix-socket form ``postgresql://user@/name?host=/dir`` included."""

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", validation_alias="LOG_LEVEL")

    private_port: Port = Field(8081, validation_alias="SURELANE_PRIVATE_PORT")
    """Serves ``/livez``, ``/readyz`` and ``/metrics``; never published."""

    host: str = Field("0.0.0.0", validation_alias="SURELANE_HOST")  # noqa: S104 - containers are reached from outside
    """The address both ports listen on; `make up` listens on 127.0.0.1 only."""

    slack_api_url: str = Field(SLACK_API_URL, validation_alias="SLACK_API_URL")

    @property
    def speaks_to_slack(self) -> bool:
        """Whether the Web API is Slack's own, so that demo secrets must be refused."""
        return self.slack_api_url.rstrip("/") == SLACK_API_URL.rstrip("/")


Loaded = TypeVar("Loaded", bound=BaseSettings)


def load_settings(kind: type[Loaded], **overrides: Any) -> Loaded:  # noqa: ANN401 - passed on to pydantic, which checks
    """Reads settings from the environment.

    Raises:
        SettingsError: naming each variable that is missing or wrong and why, never the value of a secret.
    """
    try:
        return kind(**overrides)
    except ValidationError as error:
        lines = [_complaint(problem) for problem in error.errors(include_url=False, include_input=False)]
        raise SettingsError("settings cannot be used:\n" + "\n".join(f"  {line}" for line in lines)) from None


def _complaint(problem: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails is private to pydantic-core
    name = ".".join(str(part) for part in problem["loc"]) or "settings"
    if problem["type"] == "missing":
        return f"{name} is not set"
    return f"{name}: {problem['msg'].removeprefix('Value error, ')}"
