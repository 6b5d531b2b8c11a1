"""Refuse the requests of foreign web pages; take those of the simulator's own page and of programs.

Every page in the same browser can reach a port of this machine. An attacker's name that leads here (DNS rebinding)
shows in ``Host``. A foreign page's form or script shows in ``Origin`` or ``Sec-Fetch-Site``. Programs send only
``Host``, with an address or a known name.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

PAGES = frozenset({"/", "/oauth/v2/authorize"})
FOREIGN = frozenset({"cross-site", "same-site"})


def refuse_strangers(names: Collection[str]) -> Middleware:
    """Return the middleware that answers 403 to any other request. ``names``: further host names of the simulator."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        problem = _problem(request, names)
        if problem is not None:
            return web.json_response({"ok": False, "error": problem}, status=403)
        return await handler(request)

    return check


def _problem(request: web.Request, names: Collection[str]) -> str | None:
    host = request.headers.get("Host", "")
    if not _known(host, names):
        return "the Host is not this simulator's; SURELANE_SIMULATOR_HOSTS lists further names"
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        return "the Origin is not this simulator's page"
    # A link to a page from elsewhere is harmless: it only opens it.
    opens = request.method == "GET" and request.path in PAGES
    if request.headers.get("Sec-Fetch-Site") in FOREIGN and not opens:
        return "another page asks"
    return None


def _known(host: str, names: Collection[str]) -> bool:
    """Return whether a page under this host is ours. An attacker cannot rebind an address or ``localhost``."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name in names or name == "localhost" or name.endswith(".localhost"):
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
