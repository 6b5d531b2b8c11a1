"""Settings that every service has. Each service adds its own in its ``settings`` module.

Settings come from the environment alone. Where a standard name exists it is used (``DATABASE_URL``, ``LOG_LEVEL``,
``OTEL_*``); ours begin with ``SURELANE_``. Secrets are ``SecretStr``: they never show in a log or a traceback.
"""

import os
import string
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasGenerator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from surelane.codec import SETTING, SecretKeys, read_keys
from surelane.errors import SettingsError
from surelane_service.common.connecting import UNVERIFIED, parse, unverified
from surelane_service.common.secret_files import SUFFIX, SecretFileError, read_secrets
from surelane_service.logs import get_logger
from surelane_service.manifest import MANIFEST, found_manifest

OURS = "SURELANE_"
"""How the names of our own settings begin."""
FROM_ENVIRONMENT = SettingsConfigDict(
    env_ignore_empty=True,
    extra="ignore",
    frozen=True,
    populate_by_name=True,
    protected_namespaces=(),
    alias_generator=AliasGenerator(validation_alias=lambda name: OURS + name.upper()),
)
"""How settings are read. Unless a field names its variable, that is its name in capitals, behind ``SURELANE_``."""
AS_GIVEN: dict[str, str] = {}
"""The environment before `surelane dev` added its own variables, which would hide that one of them is misspelled."""
_logger = get_logger(__name__)
_HOST = frozenset(string.ascii_lowercase + string.digits + "-._:")
Port = Annotated[int, Field(ge=0, le=65535)]


def split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _readable(url: SecretStr) -> SecretStr:
    parse(url.get_secret_value())
    return url


DatabaseUrl = Annotated[SecretStr, AfterValidator(_readable)]
"""Any libpq URI. One that cannot be used is refused, with the reason."""

SLACK_API_URL = "https://slack.com/api/"
SLACK_DOMAINS = ("slack.com", "slack-gov.com")

DEMO_SIGNING_SECRET = "surelane-demo-signing-secret"  # noqa: S105 - public on purpose, refused against Slack itself
DEMO_API_TOKEN = "surelane-demo-api-token"  # noqa: S105 - likewise
DEMO_BOT_TOKEN = "xoxb-surelane-demo"  # noqa: S105 - likewise
DEMO_CLIENT_ID = "1111111111.2222222222"
DEMO_CLIENT_SECRET = "surelane-demo-client-secret"  # noqa: S105 - likewise
DEMO_SECRETS = frozenset({DEMO_SIGNING_SECRET, DEMO_API_TOKEN, DEMO_BOT_TOKEN, DEMO_CLIENT_SECRET})
DEVELOPMENT_URL = "operator-url"
"""The file below ``SURELANE_DATA_DIR`` in which a running ``surelane dev`` keeps the URI for the operator's command.

A second line has the path of the app's manifest, where there is one."""


def host_of(url: str) -> str:
    """Return the host of a Web API's URL, in lower case. ``ValueError``: it is not http or https with a plain host."""
    parsed = urlsplit(url.strip())
    try:
        host = (parsed.hostname or "").encode("idna").decode().lower().removesuffix(".")
    except UnicodeError:
        host = ""
    if parsed.scheme not in ("http", "https") or not host or not _HOST.issuperset(host):
        raise ValueError("SLACK_API_URL is not an http or https URL, such as https://slack.com/api/")
    return host


def is_slack(url: str) -> bool:
    """Return whether a URL leads to Slack itself, in any spelling."""
    host = host_of(url)
    return any(host == domain or host.endswith(f".{domain}") for domain in SLACK_DOMAINS)


class ServiceSettings(BaseSettings):
    """The settings of every service."""

    model_config = FROM_ENVIRONMENT

    database_url: DatabaseUrl = Field(validation_alias="DATABASE_URL")
    """Any libpq URI, the Unix-socket form ``postgresql://user@/name?host=/dir`` included."""

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", validation_alias="LOG_LEVEL")

    private_port: Port = 8081
    """Serves ``/livez``, ``/readyz`` and ``/metrics``; never published."""

    host: str = "0.0.0.0"  # noqa: S104 - containers are reached from outside
    """The address both ports listen on; `make up` listens on 127.0.0.1 only."""

    private_host: str | None = None
    """The address the private port listens on; ``SURELANE_HOST`` where none is set."""

    slack_api_url: Annotated[str, AfterValidator(lambda url: url.rstrip("/") + "/")] = Field(
        SLACK_API_URL, validation_alias="SLACK_API_URL"
    )
    """The address of the Web API. It ends with a slash."""

    @property
    def speaks_to_slack(self) -> bool:
        """Whether the Web API is Slack's own, so that demo secrets must be refused."""
        return is_slack(self.slack_api_url)

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        host_of(self.slack_api_url)
        return self

    def refuse_demo_secret(self, name: str, *secrets: str | None) -> None:
        """Raise ``ValueError`` for a public demo secret where the Web API is Slack's own."""
        if self.speaks_to_slack and any(secret in DEMO_SECRETS for secret in secrets):
            raise ValueError(
                f"{name} is a public demo secret while SLACK_API_URL is Slack's own: set your own"
            )


EncryptionKeys = Annotated[
    SecretKeys | None,
    NoDecode,
    BeforeValidator(lambda value: read_keys(value) if isinstance(value, str) else value),
]
"""A settings field that takes keys separated by commas, as :func:`read_keys` does."""


class SealingSettings(ServiceSettings):
    """The settings of encryption, which ingest and workers share."""

    model_config = SettingsConfigDict(arbitrary_types_allowed=True)

    encryption_keys: EncryptionKeys = Field(None, validation_alias=SETTING)
    """The keys that encrypt stored tokens and data keys, separated by commas: the first encrypts, all decrypt."""

    encrypt_events: bool = False
    """Whether payloads, results, steps and errors are encrypted before they are stored."""

    @model_validator(mode="after")
    def _encryptable(self) -> Self:
        if self.encrypt_events and not self.encryption_keys:
            raise ValueError(
                f"{SETTING} is not set, although SURELANE_ENCRYPT_EVENTS is: see surelane keys new"
            )
        return self


class InstallSettings(SealingSettings):
    """The settings of the Slack app, which ingest and workers share: its manifest, and installs by OAuth."""

    client_id: str | None = Field(None, validation_alias="SLACK_CLIENT_ID")
    """The Slack app's client id. With it and the secret, installs are on: each workspace has tokens of its own."""

    client_secret: SecretStr | None = Field(None, validation_alias="SLACK_CLIENT_SECRET")

    manifest: Path | None = Field(default_factory=found_manifest, validation_alias=MANIFEST)
    """The Slack app's manifest. Default: the one in the working directory, if there is one."""

    @property
    def installs(self) -> bool:
        return self.client_secret is not None

    @model_validator(mode="after")
    def _installable(self) -> Self:
        if self.client_secret is not None:
            if self.client_id is None:
                raise ValueError("SLACK_CLIENT_ID is not set, although SLACK_CLIENT_SECRET is")
            if not self.encryption_keys:
                raise ValueError(
                    f"{SETTING} is not set: installs need a key for their tokens; see surelane keys new"
                )
            self.refuse_demo_secret("SLACK_CLIENT_SECRET", self.client_secret.get_secret_value().strip())
        return self


Loaded = TypeVar("Loaded", bound=BaseSettings)


def load_settings(kind: type[Loaded], **overrides: Any) -> Loaded:  # noqa: ANN401 - passed on to pydantic, which checks
    """Read settings from the environment, and secrets also from the files that it names.

    Raises:
        SettingsError: some are missing or wrong. It names each variable and the reason, never the value of a secret.
    """
    try:
        return kind(**(_files_of(kind) | overrides))
    except SecretFileError as error:
        raise SettingsError(f"settings cannot be used:\n  {error}") from None
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        # A default that needs other settings cannot be made without them. That is no complaint of its own.
        lines = [_complaint(each) for each in problems if each["type"] != "default_factory_not_called"]
        raise SettingsError("settings cannot be used:\n" + "\n".join(f"  {line}" for line in lines)) from None


def variables_of(field: FieldInfo) -> Iterator[str]:
    """Return the variables that set a field, the first one that wins first."""
    alias = field.validation_alias
    yield from map(str, alias.choices if isinstance(alias, AliasChoices) else (alias,))


def names_of(kind: type[BaseSettings]) -> list[str]:
    """Return the variables of all settings."""
    return [name for field in kind.model_fields.values() for name in variables_of(field)]


def secrets_of(kind: type[BaseSettings]) -> list[str]:
    """Return the variables of the secret settings, which may come from files."""
    return [name for names in _secrets(kind) for name in names]


def _secrets(kind: type[BaseSettings]) -> list[list[str]]:
    """Return the variables of each secret setting: the types say which are secret."""
    fields = kind.model_fields.values()
    return [list(variables_of(each)) for each in fields if "Secret" in str(each.annotation)]


def _files_of(kind: type[BaseSettings]) -> dict[str, str]:
    """Return the secrets in files. Of several variables of one setting the first one counts, however it is given."""
    found: dict[str, str] = {}
    for names in _secrets(kind):
        given = [name for name in names if os.environ.get(name) or os.environ.get(name + SUFFIX)]
        found |= read_secrets(given[:1])
    return found


def misspelled(kind: type[BaseSettings], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return each variable that looks like a misspelled setting of ``kind``, with the setting that it resembles.

    A variable that resembles none may be another program's. So it is not returned.
    """
    known, secret = set(names_of(kind)), set(secrets_of(kind))
    given = {name.removesuffix(SUFFIX) for name in environment}
    found = {}
    for name in environment:
        stem = name.removesuffix(SUFFIX)
        if not name.startswith(OURS) or name in known or stem in secret:
            continue
        if stem in known:
            found[name] = stem
        elif near := _nearest(stem, (known if stem == name else secret) - given):
            found[name] = near[0] + name.removeprefix(stem)
    return found


def _nearest(name: str, known: Collection[str]) -> list[str]:
    ours = [each.removeprefix(OURS) for each in known if each.startswith(OURS)]
    return [OURS + each for each in get_close_matches(name.removeprefix(OURS), ours, 1, 0.8)]


def warn_of_misspelled(kind: type[BaseSettings]) -> None:
    """Log a line for each variable that looks like a misspelled setting."""
    for name, meant in misspelled(kind, AS_GIVEN or os.environ).items():
        _logger.warning("there is no such setting", name=name, nearest=meant)


def warn_of_unverified(url: SecretStr) -> None:
    """Log a line if the database is elsewhere and does not prove that it is the database."""
    if host := unverified(url.get_secret_value()):
        _logger.warning("the database's certificate is not checked", host=host, advice=UNVERIFIED)


def _complaint(problem: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails is private to pydantic-core
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{name} is not set"
    return f"{name}: {problem['msg'].removeprefix('Value error, ')}".removeprefix(": ")
