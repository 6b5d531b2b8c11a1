"""Log people in at MCP servers, by OAuth 2.1: begun by one process, ended by another.

A worker discovers the authorization server, registers there, and stores a login with its PKCE verifier, sealed. Ingest
takes the person there and stores the code that comes back (``/slack/account``). A worker exchanges it. All of it is one
row per server, workspace and person (``agent.installation``), whose claim lets one process at a time change it.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar
from urllib.parse import urljoin, urlsplit

import httpx2
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from mcp.client.auth import OAuthFlowError, OAuthRegistrationError, PKCEParameters, utils
from mcp.client.auth.oauth2 import check_registration_usable
from mcp.shared import auth, auth_utils
from pydantic import AnyUrl, ValidationError

from surelane_agents.agent_settings import agent_settings
from surelane_agents.errors import UnavailableError
from surelane_agents.tools.servers import McpServer, bounded, is_safe
from surelane_service.installations import BOT, Expiring, Owner, Stored
from surelane_service.logs import get_logger
from surelane_worker.slack.tokens import Fresh, Refreshing

WITHIN = 15.0
"""Seconds in which a login is begun, or a code or refresh token exchanged."""
LOGIN_LIVES = 86_400
"""Seconds after which a login that nobody followed is begun anew. Its link leads to the new one."""
WAYS = "client_secret_basic", "client_secret_post"
"""How a client with a secret may authenticate."""
HTTP: dict[str, Any] = {"timeout": WITHIN, "event_hooks": {"response": [bounded]}}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ASKING = {"Accept": "application/json, text/event-stream"}
GRANTS = ["authorization_code", "refresh_token"]
LATER = {"temporarily_unavailable", "server_error", "slow_down"}
"""Errors of an authorization server after which the same request may succeed."""
UNUSABLE = OAuthFlowError, OAuthRegistrationError
"""Errors of ``mcp``: a server, or its authorization server, cannot be used."""
_log = get_logger(__name__)

Found = tuple[str, str | None, auth.OAuthMetadata]
"""What a token is to be for, its scopes, and the server that gives it."""
Make = Callable[[Stored | Expiring, Mapping[str, Any]], Awaitable[Fresh]]
"""Returns what a row is to hold, given what it holds."""


def word_of(url: str, *more: str) -> str:
    """Return a word for a server or a client, of the length that ingest expects in a link."""
    about = auth_utils.resource_url_from_server_url(url), *more
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Logins(Refreshing):
    """The logins of people at MCP servers."""

    lasts: ClassVar[timedelta] = timedelta(seconds=WITHIN + 5)

    async def begin(self, name: str, server: McpServer, owner: Owner, user: str, refused: str | None) -> None:
        """Store a login that waits for the person, unless one does. ``refused``: a token that the server refuses.

        It raises one of :data:`UNUSABLE`, or :class:`UnavailableError` where a server does not answer.
        """

        def fits(row: Stored) -> bool:
            waits = "code" in row.values or row.values.get("begun", 0) > time.time() - LOGIN_LIVES
            return row.token != refused if row.token else waits

        await self._once(owner, user, fits, partial(self._login, name, server))

    async def renew(self, owner: Owner, user: str, refused: str) -> None:
        """Refresh a token that the server refuses, although it has not expired."""

        def fits(row: Stored) -> bool:
            ended = row.expires_at is not None and row.expires_at <= datetime.now(UTC)
            return ended or row.token != refused or not row.values.get("user_refresh_token")

        await self._once(owner, user, fits, self._fresh)

    async def _once(self, owner: Owner, user: str, fits: Callable[[Stored], bool], make: Make) -> Stored:
        """Return a row that fits. If it does not, one process makes what it holds, and the others wait for that."""
        until = time.monotonic() + 2 * WITHIN
        while time.monotonic() < until:
            row = (await self.installations.find(owner, user)).get(user)
            if row is None:
                await self.installations.add_account(owner, user)
            elif fits(row):
                return row
            elif (begun := await self.installations.begin_refresh(row, self.lasts)) is not None:
                await asyncio.shield(self._made(row, *begun, make))
            else:
                await asyncio.sleep(0.2)
        raise UnavailableError("another process does not finish a login at an MCP server")

    async def _made(self, row: Stored, tokens: Mapping[str, Any], version: int, make: Make) -> None:
        made: Fresh = tokens, row.expires_at
        try:
            made = await make(row, tokens)
        finally:
            await self.store(row, version, *made)

    async def _login(self, name: str, server: McpServer, *_: object) -> Fresh:
        """Begin a login: discover, register, and make the link to the authorization server but for its state."""
        back = urljoin(agent_settings().connect_url or "", "account")
        async with _asking() as http:
            resource, scope, about = found = await _discovered(http, server)
            client = await self._client(http, server, found, back)
        proof = PKCEParameters.generate().code_verifier
        login: dict[str, Any] = {"name": name, "issuer": str(about.issuer), "resource": resource}
        login |= {"token_endpoint": str(about.token_endpoint), "client": client, "redirect_uri": back}
        login["names_issuer"] = bool(about.authorization_response_iss_parameter_supported)
        # Ingest puts its own state in this place.
        given = {"state": "-", "code_verifier": proof, "resource": resource}
        given |= {"scope": scope} if scope else {}
        given |= {"prompt": "consent"} if "offline_access" in (scope or "").split() else {}
        async with _client_of(login) as oauth:
            url, _ = oauth.create_authorization_url(str(about.authorization_endpoint), **given)
        return {"login": login | {"url": url, "verifier": proof}, "begun": time.time()}, None

    async def _client(
        self, http: httpx2.AsyncClient, server: McpServer, found: Found, back: str
    ) -> dict[str, Any]:
        """Return as which client the app asks: that of the file, or one that is registered once for all people."""
        (_, scope, about), secret = found, server.client_secret
        issuer = str(about.issuer)
        if server.client_id is not None:
            known = about.token_endpoint_auth_methods_supported or ()
            way = next((each for each in WAYS if secret and each in known), WAYS[0] if secret else "none")
            return {"client_id": server.client_id, "client_secret": secret, "way": way}
        if about.registration_endpoint is None:
            raise OAuthRegistrationError(f"{issuer} registers no clients: give the server a client_id")

        async def register(*_: object) -> Fresh:
            about_us = {"redirect_uris": [AnyUrl(back)], "client_name": "Surelane", "application_type": "web"}
            asked = auth.OAuthClientMetadata.model_validate({**about_us, "scope": scope})
            request = utils.create_client_registration_request(about, asked, issuer)
            given = await utils.handle_registration_response(await http.send(request))
            check_registration_usable(given)
            # RFC 7591 has the default.
            way = given.token_endpoint_auth_method or (WAYS[0] if given.client_secret else "none")
            client = {"client_id": given.client_id, "client_secret": given.client_secret, "way": way}
            ends = given.client_secret_expires_at
            return client, datetime.fromtimestamp(ends, UTC) if ends else None

        def fits(row: Stored) -> bool:
            return "way" in row.values and (row.expires_at is None or row.expires_at > datetime.now(UTC))

        owner = Owner.at(word_of(issuer, back, scope or ""), "client")
        row = await self._once(owner, BOT, fits, register)
        return {**row.values, "registered": owner.identity}

    async def _fresh(self, row: Stored | Expiring, tokens: Mapping[str, Any]) -> Fresh:
        """Exchange a code or a refresh token. If it is refused, the row keeps nothing: the person is asked anew."""
        login, again = tokens.get("login"), tokens.get("user_refresh_token")
        if login is None or not ("code" in tokens or again):
            return {}, None
        at, given = login["token_endpoint"], {"resource": login["resource"]}
        try:
            async with asyncio.timeout(WITHIN), _client_of(login) as oauth:
                if "code" in tokens:
                    given |= {"code": tokens["code"], "code_verifier": login["verifier"]}
                    answer = await oauth.fetch_token(at, grant_type="authorization_code", **given)
                else:
                    answer = await oauth.refresh_token(at, refresh_token=again, **given)
            token = auth.OAuthToken.model_validate(answer)
        except (OAuthError, ValueError, httpx2.HTTPError, httpx2.StreamError, TimeoutError) as error:
            reason = getattr(error, "error", None) or type(error).__name__
            refused = isinstance(error, OAuthError | ValidationError) and reason not in LATER
            what = "an account is refused" if refused else "no account can be exchanged now"
            _log.warning(f"{what} by an authorization server", owner=row.owner.identity, error=reason)
            if refused and reason == "invalid_client" and "registered" in login["client"]:
                await self.installations.delete(Owner(login["client"]["registered"]), [BOT])
            # The time lets the next one who needs the token try again.
            return ({}, None) if refused else (tokens, datetime.now(UTC))
        ends = None if token.expires_in is None else datetime.now(UTC) + timedelta(seconds=token.expires_in)
        kept = {key: value for key, value in login.items() if key not in ("verifier", "url")}
        fresh = {"user_token": token.access_token, "user_refresh_token": token.refresh_token or again}
        return {**fresh, "login": kept}, ends


def _client_of(login: Mapping[str, Any]) -> AsyncOAuth2Client:
    client, more = login["client"], {"redirect_uri": login["redirect_uri"], "code_challenge_method": "S256"}
    return AsyncOAuth2Client(client["client_id"], client["client_secret"], client["way"], **more, **HTTP)


@asynccontextmanager
async def _asking() -> AsyncIterator[httpx2.AsyncClient]:
    """Yield what asks servers. It follows no redirects. Raise :class:`UnavailableError` where one does not answer."""
    try:
        async with asyncio.timeout(WITHIN), httpx2.AsyncClient(**HTTP) as http:
            yield http
    except (httpx2.HTTPError, httpx2.StreamError, TimeoutError) as error:
        raise UnavailableError(f"a server of a login cannot be reached: {type(error).__name__}") from error


def _check(server: McpServer, *urls: object) -> None:
    """Refuse addresses that a server names where others could read, or that are this machine's if it is elsewhere."""
    for url in map(str, urls):
        if not (url.startswith("https:") or (is_safe(url) and not str(server.url).startswith("https:"))):
            raise OAuthFlowError(f"{urlsplit(url).hostname} is not asked: its address must begin with https")


async def _metadata(http: httpx2.AsyncClient, server: McpServer, url: str) -> httpx2.Response:
    _check(server, url)
    response = await http.send(utils.create_oauth_metadata_request(url))
    if response.status_code == 429 or response.status_code >= 500:
        response.raise_for_status()
    return response


async def _discovered(http: httpx2.AsyncClient, server: McpServer) -> Found:
    """Ask a server who gives tokens for it (RFC 9728), and that server how it does (RFC 8414)."""
    url = str(server.url)
    async with http.stream("POST", url, json=PING, headers=(server.headers or {}) | ASKING) as refusal:
        named = utils.extract_resource_metadata_from_www_auth(refusal)
        scope = utils.extract_scope_from_www_auth(refusal)
    resource, issuer, protected = auth_utils.resource_url_from_server_url(url), None, None
    for at in utils.build_protected_resource_metadata_discovery_urls(named, url):
        said = await _metadata(http, server, at)
        if (protected := await utils.handle_protected_resource_response(said)) is not None:
            issuer = str(protected.authorization_servers[0])
            if not auth_utils.check_resource_allowed(resource, str(protected.resource)):
                raise OAuthFlowError(f"{url} names another resource: {protected.resource}")
            resource = str(protected.resource)
            break
    if issuer is None:
        raise OAuthFlowError(f"{url} does not say who gives tokens for it (RFC 9728)")
    about = None
    for at in utils.build_oauth_authorization_server_metadata_discovery_urls(issuer, url):
        about = about or (await utils.handle_auth_metadata_response(await _metadata(http, server, at)))[1]
    if about is None:
        raise OAuthFlowError(f"{issuer} has no metadata of an authorization server (RFC 8414)")
    utils.validate_metadata_issuer(about, issuer)
    if "S256" not in (about.code_challenge_methods_supported or []):
        raise OAuthFlowError(f"{issuer} does not support PKCE with S256")
    named_by = about.authorization_endpoint, about.token_endpoint, about.registration_endpoint
    _check(server, *filter(None, named_by))
    if server.scopes is not None:
        return resource, " ".join(server.scopes), about
    return resource, utils.get_client_metadata_scopes(scope, protected, about, GRANTS), about
