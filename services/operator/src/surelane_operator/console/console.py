"""The routes of the operator's page: its screens, live or not, and its static files."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from aiohttp import hdrs, web

from surelane.errors import DatabaseUnavailable, InvalidInput, SurelaneError, described
from surelane_operator.api.routes import server_sent
from surelane_operator.console.access.viewer import EVENT_STREAM, viewer_of
from surelane_operator.console.live import Full, Live
from surelane_operator.console.pages import fragment, page
from surelane_operator.console.screen import Missing, Moved, Screen, ScreenAddress, Sources
from surelane_operator.console.screens import SCREENS
from surelane_operator.roles import Viewer
from surelane_service.logs import get_logger

STATIC = Path(__file__).parent / "static"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    # The page and its stream have one address. No cache may give one for the other, or a page to another person.
    "Cache-Control": "no-store",
    "Vary": "Accept",
}
"""Of every answer of the page."""
SPELL = timedelta(minutes=1)
"""For so long a stream goes on. The next one passes the guard again, so open pages end with their session."""
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES = {path.name: path for path in STATIC.iterdir() if path.suffix in _TYPES}
_logger = get_logger(__name__)


class Console:
    """The operator's page. The guard is in front of it, and says who looks."""

    def __init__(self, sources: Sources, live: Live | None = None, spell: timedelta = SPELL) -> None:
        self._sources = sources
        self._live = live or Live()
        self._spell = spell.total_seconds()

    def routes(self) -> list[web.AbstractRouteDef]:
        return [
            web.get("/console", to_the_page),
            web.get("/console/static/{name}", self.file),
            *(web.get(screen.address, self._answering(screen)) for screen in SCREENS),
        ]

    async def close(self, _: web.Application | None = None) -> None:
        """End the streams of open pages, for ``Application.on_shutdown``. The service's end would wait for them."""
        await self._live.close()

    async def file(self, request: web.Request) -> web.FileResponse:
        """Answer a static file. It holds nothing that must be kept from people who are not signed in."""
        name = request.match_info["name"]
        if name not in FILES:
            raise web.HTTPNotFound
        kind = f"{_TYPES[FILES[name].suffix]}; charset=utf-8"
        return web.FileResponse(
            FILES[name], headers={**HEADERS, "Cache-Control": "no-cache", "Content-Type": kind}
        )

    def _answering(self, screen: Screen) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            asked = ScreenAddress(dict(request.match_info), request.query)
            if screen.every is not None and EVENT_STREAM in request.headers.get(hdrs.ACCEPT, ""):
                return await self._stream(request, screen, asked, screen.every)
            return await self._page(request, screen, asked)

        return answer

    async def _page(self, request: web.Request, screen: Screen, asked: ScreenAddress) -> web.Response:
        viewer = viewer_of(request)
        try:
            return _html(page(screen, await screen.read(self._sources, asked), viewer))
        except Moved as moved:
            raise web.HTTPFound(str(moved), headers=HEADERS) from None
        except Missing as missing:
            return _html(self._problem("Not found", str(missing), viewer), 404)
        except InvalidInput as error:
            return _html(self._problem("The address cannot be read", str(error), viewer), 400)
        except DatabaseUnavailable as error:
            _logger.warning("database away", **described(error), screen=screen.name)
            text = "The database does not answer. Slack's events are refused until it does, and Slack sends them again."
            return _html(self._problem("The database is away", text, viewer), 503)
        except SurelaneError as error:
            _logger.warning("screen refused", **described(error), screen=screen.name)
            return _html(self._problem("This cannot be shown", str(error), viewer), 503)

    def _problem(self, title: str, text: str, viewer: Viewer) -> str:
        screen = Screen("problem", "", title, _nothing, listed=False, every=None)
        return page(screen, {"text": text}, viewer)

    async def _stream(
        self, request: web.Request, screen: Screen, asked: ScreenAddress, every: float
    ) -> web.StreamResponse:
        async def render() -> str:
            return fragment(screen, await screen.read(self._sources, asked))

        viewer = viewer_of(request)
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": EVENT_STREAM})
        try:
            who = f"{viewer.role} {viewer.name}"
            async with self._live.follow(request.path_qs, render, every, who) as news:
                await response.prepare(request)
                ends = asyncio.get_running_loop().time() + self._spell
                async for each in news:
                    await response.write(server_sent(each.sort, each.text))
                    if asyncio.get_running_loop().time() >= ends:
                        await response.write(server_sent("again", ""))
                        break
                return response
        except Full as full:  # told in the stream, because browsers hide any other answer from a page
            await response.prepare(request)
            await response.write(server_sent("full", str(full)))
            return response
        except ConnectionError:
            return response  # the page was closed


async def to_the_page(_: web.Request) -> web.Response:
    """Send a person to the first screen."""
    raise web.HTTPFound("/console/")


def _html(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)


async def _nothing(_: Sources, __: ScreenAddress) -> Mapping[str, Any]:
    return {}
