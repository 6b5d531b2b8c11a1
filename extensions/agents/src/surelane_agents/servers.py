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
from pydantic import BaseModel, ValidationError, model_validator
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.toolsets import AbstractToolset

from surelane.errors import SettingsError
from surelane_service.durations import Duration

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
        self._token = token
        self.refused = False

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._token}"
        response = yield request
        self.refused = self.refused or response.status_code == 401


class BoundedStream(httpx2.AsyncByteStream):
    """The body of an answer. It ends with an error where it has more than :data:`LARGEST` bytes."""

    def __init__(self, body: Any) -> None:  # noqa: ANN401 - of httpx2
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


async def _bound(response: httpx2.Response) -> None:
    """Bound an answer that is read as a whole. fastmcp bounds the events of streams itself."""
    if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
        response.stream = BoundedStream(response.stream)


def _client(**given: Any) -> httpx2.AsyncClient:  # noqa: ANN401 - of httpx2
    client = httpx2.AsyncClient(**{"timeout": httpx2.Timeout(30.0, read=300.0), **given})
    client.event_hooks = {"response": [_bound]}
    return client


class McpServer(BaseModel, hide_input_in_errors=True):
    """An MCP server: a command that speaks over standard input and output, or an address.

    ``account``: whose token it gets: ``slack`` is the Slack account of the person who caused the event.
    ``approval``: whether people must approve calls of its tools: all, or those of these names.
    ``by``: the users who may approve; by default everybody who sees the question. Where a call runs with a person's
    account, this person alone may.
    ``timeout``: how long a call of a tool, or the list of the tools, may take. ``timeouts``: of tools by their names.
    """

    command: str | None = None
    args: list[str] = []
    env: dict[str, str] | None = None
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] | None = None
    account: Literal["slack"] | None = None
    approval: bool | list[str] = False
    by: list[str] | None = None
    timeout: Duration = CALL
    timeouts: dict[str, Duration] = {}

    @model_validator(mode="after")
    def _safe(self) -> Self:
        host = urlsplit(self.url or "")
        if self.account and not (host.scheme == "https" or host.hostname in ("localhost", "127.0.0.1")):
            raise ValueError("an account needs a url that begins with https")
        if self.account and self.by is not None:
            raise ValueError("the person whose account it is approves alone: leave out by")
        return self

    def toolset(self, name: str, bearer: Bearer | None = None) -> AbstractToolset[Any]:
        """Return its tools, whose names begin with the server's. Each turn has a connection of its own.

        ``bearer``: authenticates as the person, at a server with an ``account``.
        """
        if self.command is not None:
            transport: Any = StdioTransport(self.command, self.args, self.env, self.cwd, keep_alive=False)
        else:
            sort: Any = (
                SSETransport
                if infer_transport_type_from_url(str(self.url)) == "sse"
                else StreamableHttpTransport
            )
            auth = bearer if self.account else None
            transport = sort(self.url, self.headers, auth, httpx_client_factory=_client)
        return MCPToolset(
            transport,
            id=name,
            tool_error_behavior="failed",
            init_timeout=START,
            read_timeout=None,
        ).prefixed(name)

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
    try:
        found = _File.model_validate(_filled(json.loads(path.read_bytes()))).mcpServers
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise SettingsError(f"SURELANE_MODEL_MCP: {path}: {'; '.join(wrong)}") from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"SURELANE_MODEL_MCP: {path}: {error}") from None
    for name, server in found.items():
        if (server.command is None) == (server.url is None):
            raise SettingsError(f"SURELANE_MODEL_MCP: {path}: {name} needs a command or a url")
    return found


def _filled(value: object) -> object:
    if isinstance(value, str):
        return _VARIABLE.sub(_variable, value)
    if isinstance(value, dict):
        return {key: _filled(each) for key, each in value.items()}
    return [_filled(each) for each in value] if isinstance(value, list) else value


def _variable(found: re.Match[str]) -> str:
    value = os.environ.get(found[1]) or found[2]
    if value is None:
        raise ValueError(f"{found[1]} is not set")
    return value
