"""Read the file that names MCP servers, and connect to them for one turn."""

import json
import os
import re
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import httpx2
from fastmcp.client.transports import StdioTransport
from pydantic import BaseModel, ValidationError, model_validator
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.toolsets import AbstractToolset

from surelane.errors import SettingsError
from surelane_service.durations import Duration

START = 60.0
"""Seconds that a server may take to start. Some download themselves."""
CALL = timedelta(minutes=1)
"""How long a call may take by default."""
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


class Server(BaseModel, hide_input_in_errors=True):
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
        client: Any = self.url
        if self.command is not None:
            client = StdioTransport(self.command, self.args, self.env, self.cwd, keep_alive=False)
        headers = self.headers if self.command is None else None
        auth = bearer if self.account else None
        return MCPToolset(
            client,
            id=name,
            headers=headers,
            auth=auth,
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
    mcpServers: dict[str, Server]  # noqa: N815 - the name that other programs use for it


def servers(path: Path | None) -> dict[str, Server]:
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
