"""Run the operator's service: the page, the API and assistants' tools, behind one guard on the private port."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec

from aiohttp import web
from aiohttp.typedefs import Middleware
from pydantic import SecretStr

from surelane import __version__
from surelane.calls import Calls, Pool
from surelane.codec import codec_of
from surelane.errors import INSTALL, SettingsError
from surelane_operator.api.api import OFF, OperatorApi, switched_off
from surelane_operator.changes import Changes
from surelane_operator.console.access.access_settings import AccessSettings
from surelane_operator.console.access.guard import Credentials, RequestGuard, keep_private
from surelane_operator.console.access.oidc import Provider
from surelane_operator.console.access.sessions import ProxyHeaders, SignInSessions, UsedIds, is_within
from surelane_operator.console.access.sign_in import CALLBACK, Render, SignIn
from surelane_operator.console.access.signing import Signer
from surelane_operator.console.access.viewer import ApiTokens
from surelane_operator.console.console import HEADERS, Console, to_the_page
from surelane_operator.console.pages import bare
from surelane_operator.console.screen import LinkTemplates, Sources
from surelane_operator.doctor import Examinations
from surelane_operator.roles import Groups, Role
from surelane_operator.shards import known
from surelane_operator.times import read_any_time
from surelane_service.compatibility import schema_unfit, schema_version
from surelane_service.logs import configure_logs, get_logger
from surelane_service.pool import opened_pool
from surelane_service.probes import private_app, serving_private, tell_https
from surelane_service.service_settings import load_settings, warn_of_misspelled, warn_of_unverified
from surelane_service.telemetry.setup import configure_telemetry

SERVICE = "surelane-operator"
CONNECTIONS = 4
"""The most at once for people's requests. The readiness probe has one beside."""
STATEMENT_TIMEOUT = timedelta(seconds=15)
_logger = get_logger(__name__)


Preparing = Sequence[Callable[[web.Request, web.StreamResponse], Awaitable[None]]]
Closing = Sequence[Callable[[web.Application], Awaitable[None]]]
Operators = tuple[list[web.AbstractRouteDef], Sequence[Middleware], Preparing, Closing]
"""What the private port serves for operators, and what is called with each answer, and before the service ends."""


async def main(stop: asyncio.Event) -> None:
    """Run the service until ``stop`` is set, then finish the requests it took."""
    settings = load_settings(AccessSettings)
    configure_logs(SERVICE, settings.log_level)
    warn_of_misspelled(AccessSettings)
    warn_of_unverified(settings.database_url)
    telemetry = configure_telemetry(SERVICE, __version__)
    try:
        async with running(settings) as port:
            if not _serves(settings):
                _logger.warning("the page and the API are off: SURELANE_API_TOKEN is not set")
            if settings.sign_in == "token" and settings.speaks_to_slack:
                advice = (
                    "set SURELANE_CONSOLE_SIGN_IN=oidc: the provider knows people, and their second factors"
                )
                _logger.warning("people sign in to the page by a shared token", advice=advice)
            _logger.info("serving operators", private_port=port)
            await stop.wait()
        _logger.info("stopped")
    finally:
        await asyncio.to_thread(telemetry.shutdown)


@asynccontextmanager
async def running(settings: AccessSettings) -> AsyncIterator[int]:
    """Serve the private port for the length of the block, and yield it. What is off answers how to switch it on."""

    def connecting(size: int) -> AbstractAsyncContextManager[Pool]:
        url = settings.database_url
        bounds = {"max_size": size, "statement_timeout": STATEMENT_TIMEOUT}
        return opened_pool(url, service=SERVICE, introduce=read_any_time, **bounds)

    async with (
        connecting(1) as probing,
        connecting(CONNECTIONS) as pool,
        _operators(settings, pool) as (served, middlewares, preparing, closing),
    ):

        async def unready() -> str | None:
            return await schema_unfit(schema_version(Calls(probing)))

        routes = [web.get("/", to_the_page), *served]
        app = private_app(unready, routes, settings.known_hosts, middlewares)
        app.on_shutdown.extend(closing)
        app.on_response_prepare.extend(preparing)
        async with serving_private(app, settings) as port:
            yield port


def _serves(settings: AccessSettings) -> bool:
    return bool(settings.api_token or settings.api_viewer_token or settings.sign_in)


@asynccontextmanager
async def _operators(settings: AccessSettings, pool: Pool) -> AsyncIterator[Operators]:
    if not _serves(settings):
        yield [route for path in OFF for route in switched_off(path)], [], [], []
        return
    changes = Changes(pool, codec_of(settings.encryption_keys, pool, on=settings.encrypt_events))
    examinations = Examinations(settings.database_url.get_secret_value())
    api = OperatorApi(changes, examinations)
    links, shards = (
        LinkTemplates(settings.message_url, settings.trace_url),
        known(settings.shards.get_secret_value()),
    )
    console = Console(Sources(changes, links, examinations.latest, shards))
    guard, sign_in, preparing = access_of(
        settings, lambda values: bare("sign-in", values), HEADERS, changes.calls
    )
    page = [*sign_in, *console.routes()] if settings.sign_in else switched_off("/console")
    async with assistants(settings, api) as served:
        yield [*page, *api.routes(), *served], [guard.middleware], preparing, [console.close, api.close]


@asynccontextmanager
async def assistants(settings: AccessSettings, api: OperatorApi) -> AsyncIterator[list[web.AbstractRouteDef]]:
    """Yield the route of assistants' tools. The first request imports the SDK: that takes a second and 22 MB.

    Raises:
        SettingsError: they are on, and the SDK is not installed.
    """
    if settings.assistants is None:
        yield switched_off("/mcp")
        return
    if find_spec("mcp") is None:
        raise SettingsError(f"SURELANE_MCP needs the package mcp: {INSTALL} 'surelane-operator[mcp]'")
    served, turn = list[web.RouteDef](), asyncio.Lock()
    may_change, at = settings.assistants == "change", settings.console_url if settings.sign_in else None

    async def answer(request: web.Request) -> web.StreamResponse:
        async with turn:
            if not served:
                server = await asyncio.to_thread(import_module, "surelane_operator.mcp.server")
                tools = server.serving_assistants(api.endpoints, changes=may_change, page=at)
                served.extend(await stack.enter_async_context(tools))
        return await served[0].handler(request)

    async with AsyncExitStack() as stack:
        yield [web.post("/mcp", answer)]


def access_of(
    settings: AccessSettings, render: Render, headers: dict[str, str], database: Calls
) -> tuple[RequestGuard, list[web.AbstractRouteDef], Preparing]:
    """Return the guard, the routes of the sign-in, whose page has ``headers``, and what to do with each answer."""
    secrets: list[tuple[Role, SecretStr | None]] = [
        ("viewer", settings.api_viewer_token),
        ("operator", settings.api_token),
    ]
    given = {role: secret.get_secret_value().strip() for role, secret in secrets if secret}
    tokens = ApiTokens(given) if given else None
    if settings.sign_in is None:
        return RequestGuard(tokens), [], [keep_private]
    groups = Groups(settings.viewer_groups, settings.operator_groups)
    signer, ways, links, oidc = Signer(settings.signing_key), dict[Role, str](), None, None
    if settings.sign_in == "token":
        ways, links = given, Signer(given["operator"])
    elif settings.sign_in == "oidc":
        client = f"{settings.oidc_issuer} {settings.oidc_client_id}"
        client += f" {settings.oidc_acr} {sorted(settings.oidc_amr)}"
        ways["viewer"] = f"{client} {sorted(groups.viewers)}"
        ways["operator"] = f"{client} {sorted(groups.operators)}"
        names = settings.oidc_issuer or "", settings.oidc_client_id or ""
        secret = settings.oidc_client_secret.get_secret_value() if settings.oidc_client_secret else ""
        at, claim = f"{settings.console_url}{CALLBACK}", settings.oidc_groups_claim
        oidc = Provider(
            *names, secret, at, settings.oidc_scopes, groups, claim, settings.oidc_acr, settings.oidc_amr
        )
    https = (settings.console_url or "").startswith("https:")
    browser: Credentials = (
        sessions := SignInSessions(signer, UsedIds(database), ways, https=https, idle=settings.idle_limit)
    )
    if settings.sign_in == "proxy":
        headers_of = settings.proxy_user_header or "", settings.proxy_groups_header
        browser = ProxyHeaders(*headers_of, settings.proxy_addresses, groups, signer)
    sign_in = SignIn(sessions, render, headers, tokens=tokens if links else None, links=links, oidc=oidc)

    async def tell(request: web.Request, response: web.StreamResponse) -> None:
        forwarded = request.headers.get("X-Forwarded-Proto", "").strip().lower() == "https"
        if https or (forwarded and is_within(request.remote or "", settings.proxy_addresses)):
            await tell_https(request, response)

    return RequestGuard(tokens, browser, sign_in.away), sign_in.routes(), [keep_private, sessions.keep, tell]
