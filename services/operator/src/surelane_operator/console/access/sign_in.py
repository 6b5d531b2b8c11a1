"""The way in and out: the sign-in page, what its ways lead to, and the sign-out."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from aiohttp import hdrs, web

from surelane_operator.console.access.guard import AWAY, below
from surelane_operator.console.access.oidc import Provider, ProviderUnavailable, SignInRefused, name_of
from surelane_operator.console.access.sessions import SignInSessions
from surelane_operator.console.access.signing import LINK, LINKED, SIGN_IN, Signer
from surelane_operator.console.access.viewer import ApiTokens, viewer_of
from surelane_operator.roles import Role
from surelane_service.logs import get_logger

HOME = "/console/"
CALLBACK = SIGN_IN + "/oidc/callback"
STARTED = timedelta(minutes=10)
"""How long a person may take at the provider."""
LONGEST_NEXT = 2000
LONGEST_NAME = 100
LARGEST_FORM = 16 * 1024
"""The most bytes of a form that anybody may send: many at once would take the memory."""
_STATE = "oidc"
_logger = get_logger(__name__)

Render = Callable[[dict[str, Any]], str]
"""Renders the sign-in page. Its values: ``way`` (token, oidc, proxy), ``next``, ``error`` and ``provider``."""


@dataclass(frozen=True)
class SignIn:
    """The routes of signing in and out: by ``tokens`` and ``links``, by ``oidc``, or by none, where a proxy does it."""

    sessions: SignInSessions
    render: Render
    headers: dict[str, str]
    tokens: ApiTokens | None = None
    links: Signer | None = None
    oidc: Provider | None = None

    def routes(self) -> list[web.AbstractRouteDef]:
        routes: list[web.AbstractRouteDef] = [
            web.get(SIGN_IN, self.page),
            web.post("/console/sign-out", self.leave),
        ]
        if self.tokens is not None:
            routes += [web.post(SIGN_IN, self.with_token), web.get(LINK, self.with_link)]
        if self.oidc is not None:
            routes += [web.get(SIGN_IN + "/oidc", self.start), web.get(CALLBACK, self.come_back)]
        return routes

    async def page(self, request: web.Request) -> web.Response:
        return self._page(local_path(request.query.get("next", "")))

    async def with_token(self, request: web.Request) -> web.Response:
        form = await request.clone(client_max_size=LARGEST_FORM).post()
        following, token, name = (str(form.get(field, "")) for field in ("next", "token", "name"))
        assert self.tokens is not None  # noqa: S101 - it is routed with them only
        role = self.tokens.role(request, token)
        if role is None:
            return self._page(local_path(following), "This token is wrong.", 403)
        shown = " ".join("".join(filter(str.isprintable, name)).split())[:LONGEST_NAME]
        name = f"{shown} ({role} token)" if shown else f"{role} token"
        return await self._enter(request, local_path(following), name, role)

    async def with_link(self, request: web.Request) -> web.Response:
        following = local_path(request.query.get("next", ""))
        code = self.links.read(LINKED, request.query.get("code", "")) if self.links else None
        if code is None or not await self.sessions.used.use(code):
            return self._page(following, "This link was used before, or is too old.", 403)
        return await self._enter(request, following, "sign-in link", "operator")

    async def _enter(self, request: web.Request, following: str, name: str, role: Role) -> web.Response:
        response = _to(following)
        await self.sessions.begin(request, response, name, role)
        _logger.info("signed in", who=name, role=role, address=request.remote)
        return response

    async def start(self, request: web.Request) -> web.Response:
        following = local_path(request.query.get("next", ""))
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        try:
            address = await self._provider.sign_in_address(state, nonce, verifier)
        except ProviderUnavailable as error:
            return self._unavailable(following, error)
        response = _to(address)
        values = {"state": state, "nonce": nonce, "verifier": verifier, "next": following}
        self.sessions.set(response, self.cookie, self.sessions.signer.sign(_STATE, STARTED, values), STARTED)
        return response

    async def come_back(self, request: web.Request) -> web.Response:
        """Sign in a person whom the provider sends back."""
        started = self.sessions.signer.read(_STATE, request.cookies.get(self.cookie, ""))
        if started is None or not secrets.compare_digest(
            request.query.get("state", "").encode(), str(started["state"]).encode()
        ):
            return self._page(HOME, "This sign-in began elsewhere, or too long ago. Begin it again.", 403)
        if not await self.sessions.used.use(started):
            return self._page(HOME, "This sign-in was used before. Begin it again.", 403)
        following = local_path(str(started["next"]))
        try:
            response = await self._let_in(request, started, following)
        except SignInRefused as error:
            _logger.warning("sign-in refused", reason=str(error), address=request.remote)
            response = self._page(following, "The provider did not sign you in. Begin again.", 403)
        except ProviderUnavailable as error:
            response = self._unavailable(following, error)
        self.sessions.forget(response, self.cookie)
        return response

    async def _let_in(self, request: web.Request, started: dict[str, Any], following: str) -> web.Response:
        if "code" not in request.query:
            raise SignInRefused(request.query.get("error", "no code came")[:100])
        given = request.query["code"], str(started["nonce"]), str(started["verifier"])
        claims = await self._provider.claims(*given)
        name, role = name_of(claims), self._provider.role_of(claims)
        if role is None:
            reason = "no group of this person may see the page"
            _logger.warning("sign-in refused", reason=reason, who=name, address=request.remote)
            return self._page(following, f"{name} is in no group that may see this page.", 403)
        return await self._enter(request, following, name, role)

    async def leave(self, request: web.Request) -> web.Response:
        """Sign out. The guard has checked that the page itself asks for it."""
        response = web.json_response({"signed_out": True})
        await self.sessions.end(request, response)
        _logger.info("signed out", who=viewer_of(request).name, address=request.remote)
        return response

    def away(self, request: web.Request) -> web.Response:
        """Say that it is not known who is signed in."""
        return self._page(local_path(request.path_qs), AWAY, 503)

    @property
    def cookie(self) -> str:
        """The name of the cookie that holds a sign-in at a provider until it ends."""
        return self.sessions.cookie + "-sign-in"

    @property
    def _provider(self) -> Provider:
        assert self.oidc is not None  # noqa: S101 - it is routed with it only
        return self.oidc

    def _unavailable(self, following: str, error: ProviderUnavailable) -> web.Response:
        _logger.warning("the sign-in provider is away", reason=str(error))
        return self._page(following, "The provider does not answer. Try again in a minute.", 503)

    def _page(self, following: str, error: str = "", status: int = 200) -> web.Response:
        way = "oidc" if self.oidc else "token" if self.tokens else "proxy"
        provider = self.oidc.name if self.oidc else ""
        start = f"{SIGN_IN}/oidc?{urlencode({'next': following})}"
        values = {"way": way, "next": following, "error": error, "provider": provider, "start": start}
        text = self.render(values)
        return web.Response(text=text, status=status, content_type="text/html", headers=self.headers)


def local_path(path: str) -> str:
    """Return a path of the page where ``path`` is one, else the page's first: no link leads people elsewhere."""
    wrong = len(path) > LONGEST_NEXT or "\\" in path or not path.isprintable()
    if wrong or not below(path.partition("?")[0], ("/console",)) or below(path.partition("?")[0], (SIGN_IN,)):
        return HOME
    return path


def _to(address: str) -> web.Response:
    """Return a redirect that no cache keeps."""
    headers = {hdrs.LOCATION: address, hdrs.CACHE_CONTROL: "no-store", "Referrer-Policy": "no-referrer"}
    return web.Response(status=303, headers=headers)
