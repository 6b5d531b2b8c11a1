"""Call remote agents with signed and bounded requests, at the URLs in the settings only.

Hosts come from the settings, never from an event. Redirects are not followed. Private addresses are refused unless the
settings list them.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import aiohttp
from opentelemetry import trace

from surelane.errors import SurelaneError
from surelane.trace_context import traceparent_of
from surelane_service.outbound import (
    LARGEST,
    Guard,
    PrivateAddressError,
    Reply,
    check_literal,
    guarded_session,
    post,
)
from surelane_service.webhooks import keys_of, sign, task_id
from surelane_worker.remote_agents.settings import DispatchSettings

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

        Args:
            name: the agent's name in ``SURELANE_DISPATCH_URLS``.
            identity: the event's id.
            task: any JSON.
            deadline: the time until which an answer counts.

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
