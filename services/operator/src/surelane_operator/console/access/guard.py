"""The guard in front of the operator's page, ``/v1`` and ``/mcp``: a middleware that knows who asks, or refuses."""

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from surelane_operator.audit import acting_as
from surelane_operator.console.access.sessions import NotKnown
from surelane_operator.console.access.signing import SIGN_IN
from surelane_operator.console.access.viewer import CSRF_HEADER, VIEWER
from surelane_operator.roles import Viewer
from surelane_service.logs import get_logger

GUARDED = ("/console", "/v1", "/mcp")
"""The paths that are guarded, with all below them."""
PROGRAMS = ("/mcp",)
"""Those that take a bearer token only: no page of ours asks for them, so a browser's session never counts."""
OPEN = ("/console/sign-in", "/console/static")
"""Those that are not: the way in, and files that hold no secret."""
SAFE = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})
"""Methods that change nothing."""
_logger = get_logger(__name__)
AWAY = "The database does not answer, so it is not known who is signed in. Try again in a minute."


class Credentials(Protocol):
    """A way to know who sent a request. It raises a ``web.HTTPException`` where the request is refused, or NotKnown."""

    async def viewer(self, request: web.Request) -> Viewer | None: ...


@dataclass(frozen=True)
class RequestGuard:
    """Puts the viewer on each guarded request, as ``request[VIEWER]``, or refuses it.

    ``bearer`` knows programs, by a header that no browser adds. ``away`` answers while the database does not.
    """

    bearer: Credentials | None = None
    browser: Credentials | None = None
    away: Callable[[web.Request], web.Response] | None = None

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Call ``handler`` if the viewer is known, or if the request needs none."""
        try:
            response = await self._guard(request, handler)
        except web.HTTPException as refused:
            _note(request, refused)
            if refused.status in (404, 405) and below(request.path, ("/v1",)):
                allowed = {name: value for name, value in refused.headers.items() if name == hdrs.ALLOW}
                return refusal(refused.status, "there is no such operation: see /v1/openapi.json", allowed)
            raise
        except NotKnown:
            if self.away and request.method in SAFE and below(request.path, ("/console",)):
                return self.away(request)
            return refusal(503, AWAY)
        _note(request, response)
        return response

    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not below(request.path, GUARDED) or below(request.path, OPEN):
            return await handler(request)
        if self.browser is None and below(request.path, ("/console",)):
            return await handler(request)  # the page is off, and says so
        viewer = await self.bearer.viewer(request) if self.bearer else None
        if viewer is None and self.browser is not None and not below(request.path, PROGRAMS):
            viewer = await self.browser.viewer(request)
            if viewer is not None and request.method not in SAFE and not _is_own(request, viewer):
                return refusal(403, "the request is not one of the signed-in page: reload the page")
            # What is read there, is noted as a look of the person, who must have meant it.
            if viewer is not None and _is_sent_by_another_site(request):
                return refusal(403, "a link of another site leads here: open it from the page")
        if viewer is None:
            return self._sign_in(request)
        request[VIEWER] = viewer
        with acting_as(viewer.name, "page" if viewer.csrf else "api"):
            return await handler(request)

    def _sign_in(self, request: web.Request) -> web.Response:
        if not below(request.path, ("/console",)):
            return refusal(401, "a bearer token is needed", {hdrs.WWW_AUTHENTICATE: "Bearer"})
        if request.method not in SAFE:
            return refusal(401, "sign in first")
        raise web.HTTPSeeOther(f"{SIGN_IN}?next={quote(request.path_qs, safe='')}")


def _note(request: web.Request, response: web.StreamResponse) -> None:
    """Log who was refused what, from where. A request without any token is only asked to sign in."""
    tried = response.status == 403 or (response.status == 401 and hdrs.AUTHORIZATION in request.headers)
    if tried and below(request.path, GUARDED):
        viewer = request.get(VIEWER)
        who = viewer.name if viewer else None
        where = {"method": request.method, "path": request.path, "address": request.remote}
        _logger.warning("request refused", status=response.status, who=who, **where)


async def keep_private(_: web.Request, response: web.StreamResponse) -> None:
    """Let no cache keep an answer, and no browser guess its type, for ``Application.on_response_prepare``."""
    response.headers.setdefault(hdrs.CACHE_CONTROL, "no-store")
    response.headers.setdefault("X-Content-Type-Options", "nosniff")


def below(path: str, tops: tuple[str, ...]) -> bool:
    """Return whether a path is one of ``tops``, or below one."""
    return any(path == top or path.startswith(top + "/") for top in tops)


def refusal(status: int, error: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return the answer to a request that is refused."""
    return web.json_response({"error": error}, status=status, headers=headers)


def _is_sent_by_another_site(request: web.Request) -> bool:
    """Return whether another site's link leads to a route for programs. Links to the page are welcome."""
    site = request.headers.get("Sec-Fetch-Site", "none")
    return site not in ("none", "same-origin") and not below(request.path, ("/console",))


def _is_own(request: web.Request, viewer: Viewer) -> bool:
    """Return whether our own page sent a request: it knows the CSRF token, and the browser names it as the origin."""
    origin = request.headers.get(hdrs.ORIGIN, "")
    given = request.headers.get(CSRF_HEADER, "")
    return (
        bool(viewer.csrf)
        and hmac.compare_digest(given.encode(errors="surrogateescape"), viewer.csrf.encode())
        and origin.partition("://")[2].lower() == request.headers.get(hdrs.HOST, "").lower()
    )
