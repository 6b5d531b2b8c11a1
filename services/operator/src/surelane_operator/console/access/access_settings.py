"""Settings of the operator's API and page: who may use them."""

import ipaddress
from datetime import timedelta
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    PlainValidator,
    SecretStr,
    model_validator,
)
from pydantic_settings import NoDecode

from surelane_operator.console.access.oidc import is_safe
from surelane_operator.console.access.sessions import IDLE, LASTS, Network
from surelane_operator.console.screen import SLACK_MESSAGE
from surelane_service.common.durations import Duration
from surelane_service.service_settings import DatabaseUrl, SealingSettings, split

SHORTEST = 16
"""Characters of a token or a key, at least."""


def _network(name: str) -> Network:
    network = ipaddress.ip_network(name, strict=False)
    if network.prefixlen == 0:
        raise ValueError(f"{name} is every address: name the proxy's")
    return network


def _base(address: str) -> str:
    if not is_safe(address) and urlsplit(address).scheme != "http":
        raise ValueError("write an address such as https://surelane.example.com")
    if urlsplit(address).path.strip("/") or urlsplit(address).query:
        raise ValueError("leave out the path: the page is at /console/")
    return address.rstrip("/")


def _idle(limit: timedelta) -> timedelta:
    if not timedelta(minutes=1) <= limit <= LASTS:
        raise ValueError("must be between 1m and 12h")
    return limit


Names = Annotated[frozenset[str], NoDecode, BeforeValidator(split)]


class AccessSettings(SealingSettings):
    """Settings of the operator's API and page."""

    api_token: SecretStr | None = None
    """The bearer token of the operator's API on the private port. Without one and without sign-in, the API is off."""

    api_viewer_token: SecretStr | None = None
    """A bearer token that only reads."""

    api_hosts: Names = frozenset()
    """Host names for the operator's API, beside addresses and the names of this machine or cluster."""

    database_url: DatabaseUrl = Field(
        validation_alias=AliasChoices("SURELANE_OPERATOR_DATABASE_URL", "DATABASE_URL")
    )
    """Any libpq URI, for a member of ``agent_operator``: the first of the two that is set."""

    sign_in: Literal["token", "oidc", "proxy"] | None = Field(
        None, validation_alias="SURELANE_CONSOLE_SIGN_IN"
    )
    """How people sign in to the operator's page. Unset: the page is off."""

    console_url: Annotated[str, AfterValidator(_base)] | None = None
    """The address at which browsers reach the page. With https, its cookies are for HTTPS alone."""

    console_key: SecretStr | None = None
    """The key that signs sessions. Default: a key derived from ``SURELANE_API_TOKEN``."""

    viewer_groups: Names = Field(frozenset(), validation_alias="SURELANE_CONSOLE_VIEWER_GROUPS")
    """The groups whose members may view the page, as the provider or the proxy names them; ``*``: everybody there."""

    operator_groups: Names = Field(frozenset(), validation_alias="SURELANE_CONSOLE_OPERATOR_GROUPS")
    """The groups whose members may also change things there."""

    oidc_issuer: str | None = Field(None, validation_alias="SURELANE_CONSOLE_OIDC_ISSUER")
    """The provider's issuer, an https URL exactly as its tokens name it."""

    oidc_client_id: str | None = Field(None, validation_alias="SURELANE_CONSOLE_OIDC_CLIENT_ID")

    oidc_client_secret: SecretStr | None = Field(None, validation_alias="SURELANE_CONSOLE_OIDC_CLIENT_SECRET")

    oidc_scopes: str = Field("openid profile email", validation_alias="SURELANE_CONSOLE_OIDC_SCOPES")
    """What the provider is asked for. Some need ``groups`` here to name them."""

    oidc_groups_claim: str = Field("groups", validation_alias="SURELANE_CONSOLE_OIDC_GROUPS_CLAIM")
    """The claim of the ID token that lists a person's groups."""

    oidc_acr: Annotated[tuple[str, ...], NoDecode, BeforeValidator(split)] = Field(
        (), validation_alias="SURELANE_CONSOLE_OIDC_ACR"
    )
    """Classes of sign-in, one of which the ID token must name as ``acr``, such as one with a second factor."""

    oidc_amr: Names = Field(frozenset(), validation_alias="SURELANE_CONSOLE_OIDC_AMR")
    """Methods of sign-in, one of which the ID token must list in ``amr``, such as ``mfa``."""

    idle_limit: Annotated[Duration, AfterValidator(_idle)] = Field(
        IDLE, validation_alias="SURELANE_CONSOLE_IDLE_LIMIT"
    )
    """How long a session lasts in which a person does nothing."""

    proxy_user_header: str | None = Field(None, validation_alias="SURELANE_CONSOLE_PROXY_USER_HEADER")
    """The header in which the proxy names the person, such as ``X-Forwarded-Email``."""

    proxy_groups_header: str | None = Field(None, validation_alias="SURELANE_CONSOLE_PROXY_GROUPS_HEADER")
    """The header in which the proxy lists the person's groups, separated by commas."""

    proxy_addresses: Annotated[
        list[Annotated[Network, PlainValidator(_network)]], NoDecode, BeforeValidator(split)
    ] = Field([], validation_alias="SURELANE_CONSOLE_PROXY_ADDRESSES")
    """The proxy's addresses or networks. The headers are refused from all others."""

    mcp: Literal["read", "change"] | None = None
    """What assistants may do at ``/mcp``. ``change``: also run events again and cancel, as an operator. Unset: off."""

    shards: SecretStr = SecretStr("")
    """Other installations, as NAME=URI separated by spaces, for members of agent_operator. The page lists them."""

    trace_url: str = ""
    """The address of a trace, with ``{trace_id}`` in it."""

    message_url: str = SLACK_MESSAGE
    """The address of a message, with ``{team}``, ``{channel}`` and ``{ts}`` in it."""

    @property
    def known_hosts(self) -> frozenset[str]:
        """The host names under which the API and the page answer, beside private ones."""
        own = urlsplit(self.console_url).hostname if self.console_url else None
        return self.api_hosts | {own} if own else self.api_hosts

    @property
    def assistants(self) -> Literal["read", "change"] | None:
        """What assistants may do: nothing without a token that they can send."""
        return self.mcp if self.api_token or self.api_viewer_token else None

    @property
    def signing_key(self) -> str:
        given = self.console_key or self.api_token
        assert given is not None  # noqa: S101 - checked below
        return given.get_secret_value()

    @model_validator(mode="after")
    def _tokens_hold(self) -> Self:
        for name, secret in (
            ("SURELANE_API_TOKEN", self.api_token),
            ("SURELANE_API_VIEWER_TOKEN", self.api_viewer_token),
            ("SURELANE_CONSOLE_KEY", self.console_key),
        ):
            text = secret.get_secret_value() if secret else None
            self.refuse_demo_secret(name, text and text.strip())
            if text is not None and len(text) < SHORTEST:
                raise ValueError(
                    f"{name} is shorter than {SHORTEST} characters: make one with openssl rand -hex 32"
                )
        return self

    @model_validator(mode="after")
    def _sign_in_is_whole(self) -> Self:
        needed: dict[str, object] = {}
        if self.sign_in == "token" and self.oidc_issuer and self.speaks_to_slack:
            raise ValueError(
                "SURELANE_CONSOLE_SIGN_IN=token beside a provider: write oidc, so that no shared token signs in "
                "without the provider's second factor, or leave SURELANE_CONSOLE_OIDC_ISSUER out"
            )
        if self.sign_in == "token":
            needed = {"SURELANE_API_TOKEN": self.api_token}
        elif self.sign_in is not None:
            groups = "SURELANE_CONSOLE_OPERATOR_GROUPS or SURELANE_CONSOLE_VIEWER_GROUPS"
            needed = {"SURELANE_CONSOLE_KEY or SURELANE_API_TOKEN": self.console_key or self.api_token}
            needed |= {groups: self.operator_groups or self.viewer_groups}
        if self.sign_in == "oidc":
            needed |= {
                "SURELANE_CONSOLE_URL": self.console_url,
                "SURELANE_CONSOLE_OIDC_ISSUER": self.oidc_issuer,
                "SURELANE_CONSOLE_OIDC_CLIENT_ID": self.oidc_client_id,
                "SURELANE_CONSOLE_OIDC_CLIENT_SECRET": self.oidc_client_secret,
            }
            if self.oidc_issuer and not is_safe(self.oidc_issuer):
                raise ValueError("SURELANE_CONSOLE_OIDC_ISSUER is no https URL")
        if self.sign_in is not None and self.mcp:
            needed["SURELANE_API_TOKEN or SURELANE_API_VIEWER_TOKEN for SURELANE_MCP"] = self.assistants
        if self.sign_in == "proxy":
            needed["SURELANE_CONSOLE_PROXY_USER_HEADER"] = self.proxy_user_header
            needed["SURELANE_CONSOLE_PROXY_ADDRESSES"] = self.proxy_addresses
        if missing := [name for name, value in needed.items() if not value]:
            raise ValueError(f"SURELANE_CONSOLE_SIGN_IN={self.sign_in} needs {', '.join(missing)}")
        return self
