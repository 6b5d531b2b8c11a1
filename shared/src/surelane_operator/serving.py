"""What operators reach on the private port: the API, the page and assistants' tools, behind one guard."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from surelane.calls import Calls
from surelane.encryption.data_keys import DataKeys
from surelane.encryption.sealing import Sealing
from surelane.errors import SettingsError
from surelane_operator.api.api import (
    OperatorApi,
    assistants_switched_off,
    page_switched_off,
    routes_switched_off,
)
from surelane_operator.console.access.access import access_of
from surelane_operator.console.access.settings import AccessSettings
from surelane_operator.console.console import HEADERS, Console
from surelane_operator.console.links import Links
from surelane_operator.console.pages import Pages
from surelane_operator.console.screen import Sources
from surelane_operator.operations import Operations
from surelane_operator.panels.examinations import Examinations
from surelane_service.pool import close_pool, create_pool

CONNECTIONS = 4
"""Of their own, so that operators do not delay Slack."""
STATEMENT_TIMEOUT = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Operators:
    """What the private port serves for operators.

    Attributes:
        routes: of the API, of the page and of the assistants' tools.
        middlewares: the guard.
        closing: called as the service stops, before it waits for requests.
    """

    routes: list[web.AbstractRouteDef]
    middlewares: Sequence[Middleware] = ()
    closing: Sequence[Callable[[], Awaitable[object]]] = ()

    async def shut_down(self, _: web.Application) -> None:
        """End what would otherwise go on as the service stops."""
        for close in self.closing:
            await close()


@asynccontextmanager
async def serving_operators(
    settings: AccessSettings, service: str, received: Callable[[], Mapping[str, int]] = dict
) -> AsyncIterator[Operators]:
    """Yield what operators reach. What is off answers how to switch it on.

    Args:
        settings: who may reach what.
        service: the name of the process, for its connections.
        received: what the process has received since it started: label and count.
    """
    if not (settings.api_token or settings.api_viewer_token or settings.sign_in):
        yield Operators([*routes_switched_off(), *page_switched_off(), *assistants_switched_off()])
        return
    url = settings.operator_database_url or settings.database_url
    pool = await create_pool(
        url.get_secret_value(),
        service=f"{service}-api",
        max_size=CONNECTIONS,
        statement_timeout=STATEMENT_TIMEOUT,
        connect_timeout=timedelta(seconds=5),
    )
    sealing = Sealing(DataKeys(pool, settings.encryption_keys), on=settings.encrypt_events)
    examinations = Examinations(url.get_secret_value())
    api = OperatorApi(pool, examinations, received=received, sealing=sealing)
    sources = Sources(
        Operations(pool, sealing),
        Calls(pool),
        Links(settings.message_url, settings.trace_url),
        examinations.latest,
        received,
    )
    try:
        async with _assistants(settings, api) as tools:
            yield _operators(settings, api, sources, tools)
    finally:
        await close_pool(pool)


def load_protocol(settings: AccessSettings) -> ModuleType | None:
    """Import the server of the Model Context Protocol, where the settings switch it on.

    The SDK takes half a second and 22 MB, so nothing else imports it. A service calls this before it freezes what it
    has imported.

    Raises:
        SettingsError: the SDK is not installed.
    """
    if settings.assistants is None:
        return None
    try:
        from surelane_operator.mcp import server  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"SURELANE_MCP needs the package {error.name}: pip install 'surelane[mcp]'"
        ) from None
    return server


@asynccontextmanager
async def _assistants(
    settings: AccessSettings, api: OperatorApi
) -> AsyncIterator[list[web.AbstractRouteDef]]:
    """Yield the route of the assistants' tools."""
    protocol = load_protocol(settings)
    if protocol is None:
        yield assistants_switched_off()
        return
    page = settings.console_url if settings.sign_in else None
    async with protocol.serving_assistants(
        api.operations(), changes=settings.assistants == "change", page=page
    ) as routes:
        yield routes


def _operators(
    settings: AccessSettings, api: OperatorApi, sources: Sources, tools: list[web.AbstractRouteDef]
) -> Operators:
    pages = Pages([])

    def sign_in_page(values: dict[str, Any]) -> str:
        return pages.bare("sign-in", values)

    access = access_of(settings, sign_in_page, HEADERS)
    middlewares = [access.guard.middleware]
    if settings.sign_in is None:
        return Operators([*api.routes(), *tools, *page_switched_off()], middlewares, [api.close])
    console = Console(sources)
    routes = [*access.routes, *api.routes(), *tools, *console.routes()]
    return Operators(routes, middlewares, [console.close, api.close])
