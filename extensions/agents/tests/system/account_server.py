"""Serve one tool by the Model Context Protocol over HTTP, to bearers of the tokens that it knows."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from surelane_service.probes import serving

SEARCH = {
    "name": "search",
    "description": "Search what you may read.",
    "inputSchema": {"type": "object", "properties": {"words": {"type": "string"}}, "required": ["words"]},
}


@dataclass
class AccountServer:
    """The server, whose tokens it saw, and who searched."""

    person_of: Callable[[str], str | None]
    """Returns whose token this is; ``None``: no person's."""
    url: str = ""
    refused: set[str] = field(default_factory=set)
    """Tokens that it refuses although they are valid."""
    seen: list[str] = field(default_factory=list)
    """The tokens of all requests."""
    searched: list[tuple[str, str]] = field(default_factory=list)
    """The person and the words of each search."""
    refuse_after: str | None = None
    """Words of a search after which it refuses the token."""
    issuer: str | None = None
    """Who gives the tokens: its 401 then leads to what it says of itself."""
    resource: str | None = None
    """What it calls itself; ``None``: its address."""
    elsewhere: str | None = None
    """Where it sends who has a valid token."""

    async def answer(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.seen.append(token)
        person = None if token in self.refused else self.person_of(token)
        if person is None:
            at = request.url.with_path("/.well-known/oauth-protected-resource/mcp")
            challenge = "Bearer" if self.issuer is None else f'Bearer resource_metadata="{at}", scope="read"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        if self.elsewhere is not None:
            return web.Response(status=307, headers={"Location": self.elsewhere})
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        if "id" not in message:
            return web.Response(status=202)
        result = self._result(message["method"], message.get("params") or {}, person, token)
        known = (
            {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
        )
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], **known})

    async def about(self, _: web.Request) -> web.Response:
        """Say what it is, and who gives tokens for it."""
        return web.json_response(
            {"resource": self.resource or self.url, "authorization_servers": [self.issuer]}
        )

    def _result(self, method: str, given: dict[str, Any], person: str, token: str) -> Any:
        if method == "initialize":
            about = {"name": "account", "version": "1"}
            version = given["protocolVersion"]
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        if method == "tools/list":
            return {"tools": [SEARCH]}
        if method == "tools/call":
            words = given["arguments"]["words"]
            self.searched.append((person, words))
            if words == self.refuse_after:
                self.refused.add(token)
            return {"content": [{"type": "text", "text": json.dumps({"found": f"{words} of {person}"})}]}
        return None


@asynccontextmanager
async def account_server(person_of: Callable[[str], str | None]) -> AsyncIterator[AccountServer]:
    """Serve it for the length of the block."""
    server, app = AccountServer(person_of), web.Application(client_max_size=2**24)
    app.router.add_route("*", "/mcp", server.answer)
    app.router.add_get("/.well-known/oauth-protected-resource/mcp", server.about)
    async with serving(app, 0, setting="none", host="127.0.0.1") as port:
        server.url = f"http://127.0.0.1:{port}/mcp"
        yield server
