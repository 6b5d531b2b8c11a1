"""An authorization server as rude as real ones: exact addresses, codes that count once, rotated refresh tokens."""

import asyncio
import base64
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any
from urllib.parse import urlencode

from aiohttp import BasicAuth, web

from surelane_service.probes import serving


@dataclass
class Granted:
    """What one approval gave: the person, the client and the resource, and the tokens that are valid."""

    person: str
    client: str
    asked: dict[str, str]
    tokens: set[str] = field(default_factory=set)
    refresh_token: str = ""


@dataclass
class OauthServer:
    """The server, who is signed in there, and what it was asked."""

    url: str = ""
    person: str = "sarah@example.com"
    lives: int = 3600
    """Seconds for which access tokens are valid."""
    said: dict[str, Any] = field(default_factory=dict)
    """What its metadata says in place of the truth."""
    way: str | None = None
    """How registered clients authenticate; ``None``: it does not say, so by ``client_secret_basic``."""
    away: int = 0
    """Requests for tokens that it answers with 503 before it is there again."""
    clients: dict[str, str] = field(default_factory=dict)
    """Their secrets; empty: a public client."""
    counts: Counter[str] = field(default_factory=Counter)
    """Requests that it granted: ``register``, ``authorization_code``, ``refresh_token``."""
    refusals: list[str] = field(default_factory=list)
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    """What it answers only once an event is set, although it was granted."""
    redirects: set[str] = field(default_factory=set)
    codes: dict[str, Granted] = field(default_factory=dict)
    used: dict[str, Granted] = field(default_factory=dict)
    granted: list[Granted] = field(default_factory=list)

    def person_of(self, token: str, resource: str) -> str | None:
        """Return whose token for a resource this is; ``None``: nobody's."""
        valid = [each for each in self.granted if token in each.tokens and each.asked["resource"] == resource]
        return valid[0].person if valid else None

    def expire(self) -> None:
        """Let no access token be valid."""
        for each in self.granted:
            each.tokens.clear()

    async def _metadata(self, _: web.Request) -> web.Response:
        about = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            "scopes_supported": ["read", "offline_access"],
        }
        return web.json_response({k: v for k, v in (about | self.said).items() if v is not None})

    async def _hold(self, what: str) -> None:
        self.counts[what] += 1
        if what in self.held:
            await self.held[what].wait()

    async def _register(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.redirects |= set(asked["redirect_uris"])
        client = token_hex(8)
        self.clients[client] = "" if self.way == "none" else token_hex(16)
        await self._hold("register")
        given = {"client_id": client, "client_secret": self.clients[client], "client_secret_expires_at": 0}
        given |= {"redirect_uris": asked["redirect_uris"], "token_endpoint_auth_method": self.way}
        return web.json_response({k: v for k, v in given.items() if v not in ("", None)}, status=201)

    async def _authorize(self, request: web.Request) -> web.Response:
        asked = dict(request.query)
        known = asked.get("client_id") in self.clients and asked.get("redirect_uri") in self.redirects
        if not known or asked.get("code_challenge_method") != "S256" or "resource" not in asked:
            return web.Response(status=400, text="this request is refused")
        code = token_hex(16)
        self.codes[code] = Granted(self.person, asked["client_id"], asked)
        back = urlencode({"code": code, "state": asked["state"], "iss": self.url})
        return web.Response(status=302, headers={"Location": f"{asked['redirect_uri']}?{back}"})

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        sort = form["grant_type"]
        if self.away:
            self.away -= 1
            return web.Response(status=503, text="<html>")
        client, secret = form.get("client_id", ""), form.get("client_secret", "")
        if self.way in (None, "client_secret_basic") and "Authorization" in request.headers:
            basic = BasicAuth.decode(request.headers["Authorization"])
            client, secret = basic.login, basic.password
        known = self.clients.get(client) == secret
        given = self._granted(sort, form, client) if known else "invalid_client"
        if isinstance(given, str):
            self.refusals.append(given)
            return web.json_response({"error": given}, status=400)
        token, given.refresh_token = token_hex(16), token_hex(16)
        given.tokens.add(token)
        await self._hold(sort)
        more = {"expires_in": self.lives, "refresh_token": given.refresh_token, "scope": "read"}
        return web.json_response({"access_token": token, "token_type": "bearer", **more})

    def _granted(self, sort: str, form: dict[str, str], client: str) -> Granted | str:
        """Return what is granted, or the error. A code or a refresh token that comes again ends all of it."""
        if sort == "refresh_token":
            owner = [each for each in self.granted if each.refresh_token == form["refresh_token"]]
            if owner and owner[0].client == client and owner[0].asked["resource"] == form.get("resource"):
                owner[0].tokens.clear()
                return owner[0]
            return "invalid_grant"
        if (stolen := self.used.get(form["code"])) is not None:
            stolen.tokens.clear()
            stolen.refresh_token = ""
        grant = self.codes.pop(form["code"], None)
        if grant is None:
            return "invalid_grant"
        self.used[form["code"]] = grant
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        proof = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        same = all(form.get(each) == grant.asked[each] for each in ("redirect_uri", "resource"))
        if client != grant.client or proof != grant.asked["code_challenge"] or not same:
            return "invalid_grant"
        self.granted.append(grant)
        return grant


@asynccontextmanager
async def oauth_server() -> AsyncIterator[OauthServer]:
    """Serve it for the length of the block."""
    server, app = OauthServer(), web.Application()
    app.router.add_get("/.well-known/oauth-authorization-server", server._metadata)  # noqa: SLF001 - its own
    app.router.add_post("/register", server._register)  # noqa: SLF001
    app.router.add_get("/authorize", server._authorize)  # noqa: SLF001
    app.router.add_post("/token", server._token)  # noqa: SLF001
    async with serving(app, 0, setting="none", host="127.0.0.1") as port:
        server.url = f"http://127.0.0.1:{port}"
        yield server
