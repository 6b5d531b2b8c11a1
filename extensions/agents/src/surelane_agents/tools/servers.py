"""Read the file that names MCP servers, and connect to them for one turn."""

import json
import os
import re
from collections.abc import AsyncIterator, Generator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import httpx2
from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport
from fastmcp.mcp_config import infer_transport_type_from_url
from pydantic import BaseModel, model_validator
from pydantic_ai import AbstractToolset
from pydantic_ai.mcp import MCPToolset

from surelane_agents.errors import told_of
from surelane_agents.people.access import AllowList
from surelane_service.common.durations import Duration

START = 60.0
"""Seconds that a server may take to start. Some download themselves."""
CALL = timedelta(minutes=1)
"""How long a call may take by default."""
LARGEST = 4 * 2**20
"""Bytes of an answer of a server. In memory it takes five times as much, and the model gets 50,000 characters."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}", re.ASCII)


class Bearer(httpx2.Auth):
    """Authenticates requests with a person's token, which no ``repr`` shows.

    ``refused``: whether a server has answered 401.
    """

    def __init__(self, token: str) -> None:
        self.token = token
        self.refused = False

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = f"Bearer {self.token}"
        response = yield request
        self.refused = self.refused or response.status_code == 401


class BoundedStream(httpx2.AsyncByteStream):
    """The body of an answer. It ends with an error where it has more than :data:`LARGEST` bytes."""

    def __init__(self, body: Any) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for piece in self._body:
            read += len(piece)
            if read > LARGEST:
                raise httpx2.StreamError(f"an MCP server's answer has more than {LARGEST:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._body.aclose()


async def bounded(response: httpx2.Response) -> None:
    """Bound an answer that is read as a whole. fastmcp bounds the events of streams itself."""
    if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
        response.stream = BoundedStream(response.stream)


def is_safe(url: str) -> bool:
    """Return whether secrets may be sent there: nobody on the way reads them."""
    host = urlsplit(url)
    return host.scheme == "https" or host.hostname in ("localhost", "127.0.0.1")


def _client(**given: Any) -> httpx2.AsyncClient:
    client = httpx2.AsyncClient(**{"timeout": httpx2.Timeout(30.0, read=300.0), **given})
    client.event_hooks = {"response": [bounded]}
    return client


class McpServer(BaseModel, hide_input_in_errors=True):
    """An MCP server: a command that speaks over standard input and output, or an address.

    What its members mean is in ``docs/agent.md``, under MCP servers.
    """

    command: str | None = None
    args: list[str] = []
    env: dict[str, str] | None = None
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] | None = None
    account: Literal["slack", "oauth"] | None = None
    client_id: str | None = None
    client_secret: str | None = None
    scopes: list[str] | None = None
    approval: bool | list[str] = False
    by: list[str] | None = None
    allow: AllowList | None = None
    timeout: Duration = CALL
    timeouts: dict[str, Duration] = {}

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if self.account and not is_safe(self.url or ""):
            raise ValueError("an account needs a url that begins with https")
        if self.account and self.by is not None:
            raise ValueError("the person whose account it is approves alone: leave out by")
        given = self.client_id, self.client_secret, self.scopes
        if self.account != "oauth" and any(each is not None for each in given):
            raise ValueError('client_id, client_secret and scopes need "account": "oauth"')
        return self

    def toolset(self, name: str, bearer: Bearer | None = None) -> AbstractToolset[Any]:
        """Return its tools, whose names begin with the server's. Each turn has a connection of its own.

        ``bearer``: authenticates as the person, at a server with an ``account``.
        """
        if self.command is not None:
            transport: Any = StdioTransport(self.command, self.args, self.env, self.cwd, keep_alive=False)
        else:
            is_sse = infer_transport_type_from_url(str(self.url)) == "sse"
            sort: Any = SSETransport if is_sse else StreamableHttpTransport
            auth = bearer if self.account else None
            transport = sort(self.url, self.headers, auth, httpx_client_factory=_client)
        given: Any = {"tool_error_behavior": "failed", "init_timeout": START, "read_timeout": None}
        return MCPToolset(transport, id=name, **given).prefixed(name)

    def bound(self, name: str, tool: str = "") -> float:
        """Return the seconds that a call of a tool may take, by its name as the model calls it."""
        return self.timeouts.get(tool.removeprefix(f"{name}_"), self.timeout).total_seconds()

    def must_have(self, name: str) -> frozenset[str]:
        """Return the names of the tools that need approval, as the model calls them."""
        listed = self.approval if isinstance(self.approval, list) else []
        return frozenset(f"{name}_{tool}" for tool in listed)


class _File(BaseModel, hide_input_in_errors=True):
    mcpServers: dict[str, McpServer]  # noqa: N815 - the name that other programs use for it


def servers(path: Path | None) -> dict[str, McpServer]:
    """Return the servers of a file, ``{"mcpServers": {name: {"command" or "url": …}}}``, by name.

    ``${NAME}`` and ``${NAME:-default}`` stand for variables of the environment.

    Raises:
        SettingsError: the file cannot be used. The message quotes no values: they may be secrets.
    """
    if path is None:
        return {}
    with told_of("SURELANE_MODEL_MCP", path):
        filled = _VARIABLE.sub(_variable, path.read_text(encoding="utf-8"))
        found = _File.model_validate_json(filled).mcpServers
        for name, server in found.items():
            if (server.command is None) == (server.url is None):
                raise ValueError(f"{name} needs a command or a url")
        return found


def _variable(found: re.Match[str]) -> str:
    """Return a variable's value, or the default, as a part of a JSON string."""
    if value := os.environ.get(found[1]):
        return json.dumps(value)[1:-1]
    if found[2] is None:
        raise ValueError(f"{found[1]} is not set")
    return found[2]
