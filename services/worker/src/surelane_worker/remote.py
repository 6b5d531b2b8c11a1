"""Calls to remote agents: signed, bounded, and only to where the settings say.

Hosts come from the settings, never from an event. Redirects are not followed. Names are resolved here and private
addresses refused unless listed, by the same look-up the connection uses, so that a name cannot change in between.
"""

import ipaddress
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from opentelemetry import trace
from yarl import URL

from surelane.errors import SurelaneError
from surelane.telemetry import traceparent_of
from surelane.webhooks import keys_of, sign, task_id
from surelane_worker.dispatch_settings import DispatchSettings, Network

LARGEST = 1_000_000
"""Bytes of a task, and of an answer, at most."""
TIMEOUT = aiohttp.ClientTimeout(total=30, connect=10)
TRY_AGAIN = frozenset({408, 425, 429})


class RemoteAgentError(SurelaneError):
    """A remote agent could not be reached, or failed; another attempt may do better."""


class RefusedError(SurelaneError):
    """The call must not be made, or the agent refused it: another attempt would end the same."""


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
        """Sends a task. Sent again for the same event it has the same ``webhook-id``, by which the agent knows it.

        The answer's ``webhook-id`` is another, so that this request is no answer when it is posted to us.

        Args:
            name: the agent's, as in ``SURELANE_DISPATCH_URLS``.
            identity: the event's id.
            task: any JSON.
            deadline: until when an answer is waited for.

        Raises:
            RefusedError: no such agent, an address that is not allowed, or the agent refused the task.
            RemoteAgentError: anything that another attempt may mend.
        """
        url = self._settings.dispatch_urls.get(name)
        if url is None:
            raise RefusedError(f"no remote agent is called {name!r}")
        body = self._body(name, identity, task, deadline)
        headers = sign(task_id(identity), body, keys_of(self._settings.dispatch_secrets, name))
        try:
            return await self._post(name, url, body, headers)
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
        sent = {
            **headers,
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            **({"traceparent": traceparent} if traceparent else {}),
        }
        connector = aiohttp.TCPConnector(resolver=Guard(self._settings.dispatch_private), force_close=True)
        check_literal(url, self._settings.dispatch_private)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=TIMEOUT, auto_decompress=False) as session,
            session.post(url, data=body, headers=sent, allow_redirects=False) as response,
        ):
            return await _read(name, response)


async def _read(name: str, response: aiohttp.ClientResponse) -> Answered | Accepted:
    if response.status in (202, 204):
        return Accepted()
    if response.status != 200:
        message = f"{name} answered {response.status}"
        if response.status >= 500 or response.status in TRY_AGAIN:
            raise RemoteAgentError(message)
        raise RefusedError(message)
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise RefusedError(f"{name} answered compressed")
    text = await _bounded(name, response)
    try:
        return Answered(json.loads(text)) if text else Accepted()
    except ValueError:
        raise RefusedError(f"{name} answered what is not JSON") from None


async def _bounded(name: str, response: aiohttp.ClientResponse) -> bytes:
    read = bytearray()
    async for chunk in response.content.iter_chunked(65536):
        read += chunk
        if len(read) > LARGEST:
            raise RefusedError(f"{name} answered more than {LARGEST:,} bytes")
    return bytes(read)


class Guard(AbstractResolver):
    """Resolves names, and refuses those that lead to a private address which is not listed."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        self._allowed = allowed
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """As the resolver beneath. Raises RefusedError: one of the addresses is not allowed."""
        found = await self._resolver.resolve(host, port, family)
        for result in found:
            check(result["host"], self._allowed)
        return found

    async def close(self) -> None:
        """Nothing is held."""
        await self._resolver.close()


def check(address: str, allowed: Sequence[Network]) -> None:
    """Raises RefusedError: the address is not a public one and in none of the networks allowed."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        parsed = parsed.ipv4_mapped or parsed.sixtofour or parsed
    if any(parsed.version == network.version and parsed in network for network in allowed):
        return
    if not parsed.is_global or parsed.is_multicast or parsed.is_reserved:
        raise RefusedError("its address is private; list the network in SURELANE_DISPATCH_PRIVATE")


def check_literal(url: str, allowed: Sequence[Network]) -> None:
    """As :func:`check` for a URL whose host is an address, which is connected to without being resolved."""
    host = URL(url).host or ""
    try:
        check(host, allowed)
    except ValueError:
        return  # a name: the guard sees what it resolves to
