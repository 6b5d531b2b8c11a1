"""Read the settings of triggers and remote agents."""

import ipaddress
from datetime import timedelta
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode
from yarl import URL

from surelane_service.durations import Duration
from surelane_service.outbound import Network
from surelane_service.settings import ServiceSettings
from surelane_service.webhooks import Secrets


def _pairs(text: object) -> object:
    """Parse ``name=value,name2=value2``."""
    if not isinstance(text, str):
        return text
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if not all(name.strip() and value.strip() for name, _, value in pairs):
        raise ValueError("write name=value,name2=value2")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _networks(text: object) -> object:
    if not isinstance(text, str):
        return text
    return [ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()]


Pairs = Annotated[dict[str, str], NoDecode, BeforeValidator(_pairs)]


class DispatchSettings(ServiceSettings):
    """The settings of triggers and of calls to remote agents."""

    trigger_kinds: Pairs = Field(default_factory=dict, validation_alias="SURELANE_TRIGGER_KINDS")
    """The kind of job that each trigger starts: ``name=kind,name2=kind2``. Other triggers are only recorded."""

    dispatch_urls: Pairs = Field(default_factory=dict, validation_alias="SURELANE_DISPATCH_URLS")
    """The remote agents: ``name=https://…,name2=https://…``."""

    dispatch_secrets: Secrets = Field(default_factory=dict, validation_alias="SURELANE_DISPATCH_SECRETS")
    """The secrets that sign calls: ``name=whsec_…|whsec_…``. Ingest verifies answers with the same secrets."""

    dispatch_private: Annotated[list[Network], NoDecode, BeforeValidator(_networks)] = Field(
        default_factory=list, validation_alias="SURELANE_DISPATCH_PRIVATE"
    )
    """Private networks that calls may reach: ``10.1.0.0/16,fd00::/8``."""

    dispatch_deadline: Duration = Field(timedelta(hours=1), validation_alias="SURELANE_DISPATCH_DEADLINE")
    """The deadline of an answer, counted from the call, for tasks without ``within``."""

    public_url: str | None = Field(None, validation_alias="SURELANE_PUBLIC_URL")
    """The URL of ingest's public port from outside. Remote agents answer there."""

    def answer_url(self, identity: int) -> str:
        """Return the URL at which a remote agent answers an event."""
        return f"{(self.public_url or '').rstrip('/')}/v1/dispatch/{identity}"

    @model_validator(mode="after")
    def _dispatchable(self) -> Self:
        for name, url in self.dispatch_urls.items():
            self._check_agent(name, url)
        if self.dispatch_urls and not self.public_url:
            raise ValueError("SURELANE_PUBLIC_URL is not set: remote agents would not know where to answer")
        return self

    def _check_agent(self, name: str, url: str) -> None:
        parsed = URL(url)
        schemes = {"https", "http"} if self.dispatch_private else {"https"}
        if parsed.scheme not in schemes or not parsed.host or parsed.user or parsed.fragment:
            raise ValueError(
                f"SURELANE_DISPATCH_URLS: {name} needs a URL with https"
                " (http where SURELANE_DISPATCH_PRIVATE is set), a host, and no user"
            )
        if name not in self.dispatch_secrets:
            raise ValueError(f"SURELANE_DISPATCH_SECRETS has no secret for {name}")
