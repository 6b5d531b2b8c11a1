"""Read ingest's settings from environment variables, and check them before anything starts."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Self, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, SecretStr, model_validator
from pydantic_settings import NoDecode

from surelane_service.common.durations import Duration
from surelane_service.manifest import bot_events, bot_scopes
from surelane_service.service_settings import InstallSettings, Port, split
from surelane_service.subscriptions import DEFAULT_TYPES, TYPES
from surelane_service.webhooks import Secrets

_APP_TOKEN = re.compile(r"xapp-[A-Za-z0-9-]+", re.ASCII)
_EVENT_TYPE = re.compile(r"[a-z_]+(\.[a-z]+)?", re.ASCII)


SCOPES = (
    "app_mentions:read",
    "assistant:write",
    "channels:history",
    "chat:write",
    "commands",
    "files:read",
    "files:write",
    "groups:history",
    "im:history",
    "im:write",
    "mpim:history",
    "reactions:write",
    "users:read",
)
"""The scopes of the documented manifest."""
_SCOPE = re.compile(r"[a-z0-9_.:-]+", re.ASCII)


def _scopes(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not _SCOPE.fullmatch(name):
            raise ValueError(f"{name} is no scope: write, for example, chat:write,commands")
    return names


Scopes = Annotated[tuple[str, ...], NoDecode, BeforeValidator(split), AfterValidator(_scopes)]


def _event_types(value: object) -> object:
    """Check types that the setting names. A manifest may subscribe to none."""
    if not isinstance(value, str):
        return value
    names = cast("list[str]", split(value))
    wrong = sorted(name for name in names if not _EVENT_TYPE.fullmatch(name))
    if wrong or not names:
        raise ValueError(
            f"{', '.join(wrong) or 'nothing'} is no event type: write, for example, app_mention,message.im"
        )
    return names


def _subscribed(given: dict[str, Any]) -> frozenset[str]:
    events = bot_events(given.get("manifest"))
    return DEFAULT_TYPES if events is None else events


def _needed(given: dict[str, Any]) -> tuple[str, ...]:
    return bot_scopes(given.get("manifest")) or SCOPES


def _positive(duration: timedelta) -> timedelta:
    if not duration:
        raise ValueError("must be longer than 0")
    return duration


def _not_empty(size: ByteSize) -> ByteSize:
    if size < 1024:
        raise ValueError("must be at least 1KiB")
    return size


Positive = Annotated[Duration, AfterValidator(_positive)]
Size = Annotated[ByteSize, AfterValidator(_not_empty)]


class IngestSettings(InstallSettings):
    """Ingest's settings, beside those of every service and of installs."""

    port: Port = 8080
    """The public port, where Slack posts."""

    signing_secret: SecretStr | None = Field(None, validation_alias="SLACK_SIGNING_SECRET")
    """The app's signing secret. During a rotation: the new and the old one, separated by a comma.

    Without one, Slack's URLs are off. :attr:`app_token` must then be set.
    """

    app_token: SecretStr | None = Field(None, validation_alias="SLACK_APP_TOKEN")
    """The app-level token (``xapp-…``) of Socket Mode. With it, events come without a public address."""

    socket_connections: int = Field(2, ge=1, le=4)
    """The connections of Socket Mode. Slack allows an app ten, which all replicas share."""

    event_types: Annotated[frozenset[str], NoDecode, BeforeValidator(_event_types)] = Field(
        default_factory=_subscribed, validation_alias=TYPES
    )
    """The event types to take, by the names of Slack's subscriptions, separated by commas. Default: the manifest's."""

    merge_mentions: bool = True
    """Whether a mention and the channel message that Slack sends for it are one event. ``off`` for Bolt apps."""

    own_events: bool = False
    """Whether the app's own messages and reactions are taken. A handler that answers them all answers itself."""

    bot_messages: bool = False
    """Whether messages that no person wrote are taken: other apps' bots, workflows, Slackbot's reminders."""

    loop_limit: int = Field(10, ge=1, le=1000)
    """The most messages that no person wrote, per thread within a minute without a person in it. More are dropped."""

    max_body: Size = ByteSize(1024 * 1024)
    """The largest body, in bytes or as ``1MiB``. Larger ones are answered 413."""

    body_memory: Size = ByteSize(64 * 1024 * 1024)
    """The most memory for the bodies of all unanswered requests. Requests beyond it are answered 503."""

    connections: int = Field(512, ge=16)
    """The most connections to the public port. Beyond it, the oldest without a signed request is closed."""

    buffer: int = Field(2000, ge=1)
    """The most events that wait for the database. Requests beyond it are answered 503."""

    database_budget: Positive = timedelta(seconds=2)
    """How long a request waits for its commit before it is answered 503. Slack gives up after three seconds."""

    drain_timeout: Positive = timedelta(seconds=30)
    """How long requests may take to finish after SIGTERM."""

    trigger_secrets: Secrets = Field(default_factory=dict)
    """The senders of webhooks at ``/v1/triggers/{name}``: ``name=whsec_…,name2=whsec_…|whsec_…``, two in a rotation."""

    dispatch_secrets: Secrets = Field(default_factory=dict)
    """The remote agents that may answer at ``/v1/dispatch/{id}``, in the form of :attr:`trigger_secrets`."""

    scopes: Scopes = Field(default_factory=_needed, validation_alias="SLACK_SCOPES")
    """The bot's scopes that an install asks for, separated by commas. Default: the manifest's."""

    user_scopes: Scopes = Field((), validation_alias="SLACK_USER_SCOPES")
    """The scopes of the person who installs. With some, installs also bring that person's token."""

    redirect_uri: str | None = Field(None, validation_alias="SLACK_REDIRECT_URI")
    """The public address of ``/slack/oauth_redirect``, if the app has several in its settings."""

    app_id: str | None = Field(None, validation_alias="SLACK_APP_ID")
    """The Slack app's id. With it, an install of another app is refused."""

    authorize_url: str | None = Field(None, validation_alias="SLACK_AUTHORIZE_URL")
    """Slack's page for installs. Default: ``/oauth/v2/authorize`` at the host of ``SLACK_API_URL``."""

    install_pages: Path | None = None
    """A directory with your own ``success.html`` and ``failure.html``."""

    @property
    def signing_secrets(self) -> list[str]:
        """The signing secrets. Any of them may sign a request."""
        given = self.signing_secret.get_secret_value() if self.signing_secret else ""
        return [part.strip() for part in given.split(",") if part.strip()]

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.signing_secret is not None and not self.signing_secrets:
            raise ValueError("SLACK_SIGNING_SECRET holds no secret")
        if not (self.signing_secret or self.app_token):
            raise ValueError(
                "SLACK_APP_TOKEN (for Socket Mode) or SLACK_SIGNING_SECRET (for HTTP) must be set, or both"
            )
        if self.app_token and not _APP_TOKEN.fullmatch(self.app_token.get_secret_value().strip()):
            raise ValueError("SLACK_APP_TOKEN is no app-level token: those begin with xapp-")
        self.refuse_demo_secret("SLACK_SIGNING_SECRET", *self.signing_secrets)
        for name, url in (
            ("SLACK_REDIRECT_URI", self.redirect_uri),
            ("SLACK_AUTHORIZE_URL", self.authorize_url),
        ):
            if url is not None and (
                urlsplit(url).scheme not in ("http", "https") or re.search(r"[\s&#?]", url)
            ):
                raise ValueError(f"{name} is not an http or https address without a query")
        if self.installs and not (self.scopes or self.user_scopes):
            raise ValueError(
                "SLACK_SCOPES and SLACK_USER_SCOPES are both empty: an install would ask for nothing"
            )
        if self.body_memory < self.max_body:
            raise ValueError("SURELANE_BODY_MEMORY must be no less than SURELANE_MAX_BODY")
        return self
