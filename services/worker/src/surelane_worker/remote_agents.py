"""Call remote agents with signed and bounded requests, at the URLs in the settings only.

Hosts come from the settings, never from an event. Redirects are not followed. Private addresses are refused unless the
settings list them.
"""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Self

import aiohttp
from opentelemetry import trace
from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode
from yarl import URL

from surelane.errors import SurelaneError
from surelane.trace_context import traceparent_of
from surelane_service.durations import Duration
from surelane_service.outbound import (
    LARGEST,
    Guard,
    Network,
    PrivateAddressError,
    Reply,
    check_literal,
    guarded_session,
    post,
)
from surelane_service.service_settings import ServiceSettings, split
from surelane_service.webhooks import Secrets, keys_of, sign, task_id


def _pairs(text: object) -> object:
    """Parse ``name=value,name2=value2``."""
    if not isinstance(text, str):
        return text
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if not all(name.strip() and value.strip() for name, _, value in pairs):
        raise ValueError("write name=value,name2=value2")
    return {name.strip(): value.strip() for name, _, value in pairs}


Pairs = Annotated[dict[str, str], NoDecode, BeforeValidator(_pairs)]


class DispatchSettings(ServiceSettings):
    """The settings of triggers and of calls to remote agents."""

    trigger_kinds: Pairs = Field(default_factory=dict, validation_alias="SURELANE_TRIGGER_KINDS")
    """The kind of job that each trigger starts: ``name=kind,name2=kind2``. Other triggers are only recorded."""

    dispatch_urls: Pairs = Field(default_factory=dict, validation_alias="SURELANE_DISPATCH_URLS")
    """The remote agents: ``name=https://…,name2=https://…``."""

    dispatch_secrets: Secrets = Field(default_factory=dict, validation_alias="SURELANE_DISPATCH_SECRETS")
    """The secrets that sign calls: ``name=whsec_…|whsec_…``. Ingest verifies answers with the same secrets."""

    dispatch_private: Annotated[list[Network], NoDecode, BeforeValidator(split)] = Field(
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


LONGEST_NAME = 100
"""Most characters of an unknown agent's name in an error."""
TRY_AGAIN = frozenset({408, 425, 429})
"""Statuses below 500 after which another attempt may succeed."""


class RemoteAgentError(SurelaneError):
    """A remote agent could not be reached, or it failed. Another attempt may succeed."""


class RefusedError(SurelaneError):
    """The call is not allowed, or the agent refused it. Another attempt would end the same way."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The agent answered at once."""

    result: Any


@dataclass(frozen=True, slots=True)
class Accepted:
    """The agent took the task and will answer at ``/v1/dispatch/{id}``."""


class RemoteAgents:
    """The remote agents that the settings name."""

    def __init__(self, settings: DispatchSettings) -> None:
        self._settings = settings

    async def send(self, name: str, identity: int, task: object, deadline: datetime) -> Answered | Accepted:
        """Send a task.

        Each attempt of an event sends the same ``webhook-id``, by which the agent recognises a repeated task. An
        answer must have a different ``webhook-id``: so this request, posted back to ingest, is not taken as an answer.

        ``name`` stands in ``SURELANE_DISPATCH_URLS``; ``task`` is any JSON; an answer counts until ``deadline``.

        Raises:
            RefusedError: the agent is unknown, its address is not allowed, or it refused the task.
            RemoteAgentError: another attempt may succeed.
        """
        url = self._settings.dispatch_urls.get(name)
        if url is None:
            raise RefusedError(f"no remote agent is called {name[:LONGEST_NAME]!r}")
        body = self._body(name, identity, task, deadline)
        headers = sign(task_id(identity), body, keys_of(self._settings.dispatch_secrets, name))
        try:
            return await self._post(name, url, body, headers)
        except PrivateAddressError as error:
            raise RefusedError(f"{error}; list the network in SURELANE_DISPATCH_PRIVATE") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise RemoteAgentError(f"{name}: {type(error).__name__}") from error

    def _body(self, name: str, identity: int, task: object, deadline: datetime) -> bytes:
        body = json.dumps(
            {
                "id": str(identity),
                "agent": name,
                "task": task,
                "deadline": deadline.isoformat(),
                "answer_url": self._settings.answer_url(identity),
            }
        ).encode()
        if len(body) > LARGEST:
            raise RefusedError(f"a task has at most {LARGEST:,} bytes")
        return body

    async def _post(self, name: str, url: str, body: bytes, headers: dict[str, str]) -> Answered | Accepted:
        traceparent = traceparent_of(trace.get_current_span())
        sent = {**headers, **({"traceparent": traceparent} if traceparent else {})}
        allowed = self._settings.dispatch_private
        check_literal(url, allowed)
        async with guarded_session(Guard(allowed), keep_alive=False) as session:
            return _read(name, await post(session, url, body, sent))


def _read(name: str, reply: Reply) -> Answered | Accepted:
    if reply.status in (202, 204):
        return Accepted()
    if reply.status != 200:
        message = f"{name} answered {reply.status}"
        if reply.status >= 500 or reply.status in TRY_AGAIN:
            raise RemoteAgentError(message)
        raise RefusedError(message)
    if reply.encoding != "identity":
        raise RefusedError(f"{name} answered compressed")
    if reply.body is None:
        raise RefusedError(f"{name} answered more than {LARGEST:,} bytes")
    try:
        return Answered(json.loads(reply.body)) if reply.body else Accepted()
    except (ValueError, RecursionError):
        raise RefusedError(f"{name} answered what is not JSON, or nested too deeply") from None
