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
from surelane_service.common.durations import Duration
from surelane_service.outbound import (
    LARGEST,
    Network,
    PrivateAddressError,
    PublicResolver,
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

    trigger_kinds: Pairs = Field(default_factory=dict)
    """The kind of job that each trigger starts: ``name=kind,name2=kind2``. Other triggers are only recorded."""

    dispatch_urls: Pairs = Field(default_factory=dict)
    """The remote agents: ``name=https://…,name2=https://…``."""

    dispatch_secrets: Secrets = Field(default_factory=dict)
    """The secrets that sign calls: ``name=whsec_…|whsec_…``. Ingest verifies answers with the same secrets."""

    dispatch_private: Annotated[list[Network], NoDecode, BeforeValidator(split)] = Field(default_factory=list)
    """Private networks that calls may reach: ``10.1.0.0/16,fd00::/8``."""

    dispatch_deadline: Duration = timedelta(hours=1)
    """The deadline of an answer, counted from the call, for tasks without ``within``."""

    public_url: str | None = None
    """The URL of ingest's public port from outside. Remote agents answer there."""

    def answer_url(self, identity: int) -> str:
        """Return the URL at which a remote agent answers an event."""
        return f"{(self.public_url or '').rstrip('/')}/v1/dispatch/{identity}"

    @model_validator(mode="after")
    def _dispatchable(self) -> Self:
        schemes = {"https", "http"} if self.dispatch_private else {"https"}
        for name, url in self.dispatch_urls.items():
            parsed = URL(url)
            if parsed.scheme not in schemes or not parsed.host or parsed.user or parsed.fragment:
                raise ValueError(
                    f"SURELANE_DISPATCH_URLS: {name} needs a URL with https"
                    " (http where SURELANE_DISPATCH_PRIVATE is set), a host, and no user"
                )
            if name not in self.dispatch_secrets:
                raise ValueError(f"SURELANE_DISPATCH_SECRETS has no secret for {name}")
        if self.dispatch_urls and not self.public_url:
            raise ValueError("SURELANE_PUBLIC_URL is not set: remote agents would not know where to answer")
        return self


LONGEST_NAME = 100
"""Most characters of an unknown agent's name in an error."""
TRY_AGAIN = frozenset({408, 425, 429})
"""Statuses below 500 after which another attempt may succeed."""


class RemoteAgentError(SurelaneError):
    """A remote agent could not be reached, or it failed. Another attempt may succeed."""


class TaskRefusedError(SurelaneError):
    """The call is not allowed, or the agent refused it. Another attempt would end the same way."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The agent answered at once."""

    result: Any


@dataclass(frozen=True, slots=True)
class Accepted:
    """The agent took the task and will answer at ``/v1/dispatch/{id}``."""


async def send(
    settings: DispatchSettings, name: str, identity: int, task: object, deadline: datetime
) -> Answered | Accepted:
    """Send an event's task, any JSON, to a remote agent. Its answer counts until ``deadline``.

    Each attempt of an event sends the same ``webhook-id``, by which the agent recognises a repeated task. An
    answer must have a different ``webhook-id``: so this request, posted back to ingest, is not taken as an answer.

    Raises:
        TaskRefusedError: the agent is unknown, its address is not allowed, or it refused the task.
        RemoteAgentError: another attempt may succeed.
    """
    url, allowed = settings.dispatch_urls.get(name), settings.dispatch_private
    if url is None:
        raise TaskRefusedError(f"no remote agent is called {name[:LONGEST_NAME]!r}")
    answer_url = settings.answer_url(identity)
    said = {"id": str(identity), "agent": name, "task": task, "deadline": deadline.isoformat()}
    body = json.dumps(said | {"answer_url": answer_url}).encode()
    if len(body) > LARGEST:
        raise TaskRefusedError(f"a task has at most {LARGEST:,} bytes")
    headers = sign(task_id(identity), body, keys_of(settings.dispatch_secrets, name))
    if traceparent := traceparent_of(trace.get_current_span()):
        headers["traceparent"] = traceparent
    try:
        check_literal(url, allowed)
        async with guarded_session(PublicResolver(allowed), keep_alive=False) as session:
            return _read(name, await post(session, url, body, headers))
    except PrivateAddressError as error:
        raise TaskRefusedError(f"{error}; list the network in SURELANE_DISPATCH_PRIVATE") from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise RemoteAgentError(f"{name}: {type(error).__name__}") from error


def _read(name: str, reply: Reply) -> Answered | Accepted:
    if reply.status in (202, 204):
        return Accepted()
    if reply.status != 200:
        message = f"{name} answered {reply.status}"
        if reply.status >= 500 or reply.status in TRY_AGAIN:
            raise RemoteAgentError(message)
        raise TaskRefusedError(message)
    if reply.encoding != "identity":
        raise TaskRefusedError(f"{name} answered compressed")
    if reply.body is None:
        raise TaskRefusedError(f"{name} answered more than {LARGEST:,} bytes")
    try:
        return Answered(json.loads(reply.body)) if reply.body else Accepted()
    except (ValueError, RecursionError):
        raise TaskRefusedError(f"{name} answered what is not JSON, or nested too deeply") from None
