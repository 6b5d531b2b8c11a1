"""The private port of every service: ``/livez``, ``/readyz`` and ``/metrics``. Never published.

A browser on the same network can reach it for any web page. So requests of another site are refused. Beyond the probes,
a request must also name a host that no outsider's DNS can point here (DNS rebinding).
"""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http import HTTPStatus
from typing import Any

from aiohttp import hdrs, web
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from surelane.errors import SettingsError
from surelane_service.figures import OTHER
from surelane_service.logs import get_logger
from surelane_service.service_settings import ServiceSettings

PROBES = frozenset({"/livez", "/readyz", "/metrics"})
"""The paths that Kubernetes and Prometheus request, under any name that leads to the service."""

PRIVATE_CONNECTIONS = 192
"""The most connections to a private port."""

UNFINISHED = 16 * 1024 * 1024
"""The most bytes of unfinished headers over all connections of a port. aiohttp holds them about three times."""
MAX_HEADERS = 64
"""The most headers of a request to any port. Slack and the proxies on the way send about thirty."""
LOG_EVERY = 10.0
"""Seconds after a line about connections that were closed, before the next one."""
OPENED: dict[int, socket.socket] = {}
"""Listening sockets that this process was given, by port: `surelane dev` keeps them while it replaces the process."""
_PRIVATE_SUFFIXES = (".localhost", ".svc", ".cluster.local")

SERVER = "surelane"
"""The ``Server`` of each answer. Without one, aiohttp names its own version and Python's."""

LARGEST_BODY = 4 * 1024 * 1024
"""The most bytes of a request's body: ten thousand subtasks fit."""

_logger = get_logger(__name__)


class _Connection(web.RequestHandler):
    """A connection whose answers name no version, and quote nothing of what is no request, as aiohttp's own do.

    ``unfinished``: the bytes of headers that have arrived without their end.
    """

    __slots__ = ("_body", "_body_left", "_limit", "unfinished")

    def __init__(
        self,
        server: web.Server,
        limit: "ConnectionLimit | None",
        **options: Any,  # noqa: ANN401 - aiohttp's
    ) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._limit = limit
        self._body, self._body_left = EMPTY_PAYLOAD, 0
        self.unfinished = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._limit is not None:
            self._limit.arrived(self)

    def data_received(self, data: bytes) -> None:
        requests = self._request_count
        super().data_received(data)
        if self._request_count > requests:
            message, self._body = self._messages[-1]
            headers = message.headers if isinstance(message, RawRequestMessage) else {}  # else it is an error
            length = int(headers.get(hdrs.CONTENT_LENGTH, 0))
            # The end of the headers, or an earlier one in the same bytes: so never too few count as unfinished.
            self._body_left = length + data.find(b"\r\n\r\n") + 4
        self._body_left -= len(data)
        if self.transport is None or self._upgraded or not self._body.is_eof():
            self._body_left = max(0, self._body_left)  # of a chunked body, the length is not known
        self._now_unfinished(max(0, -self._body_left))

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._now_unfinished(0)

    def _now_unfinished(self, size: int) -> None:
        grown, self.unfinished = size - self.unfinished, size
        if grown and self._limit is not None:
            self._limit.grew(grown)

    def abort(self) -> None:
        """Close the connection at once, also to a client that reads nothing: unwritten bytes take memory, too."""
        transport = self.transport
        self.force_close()
        if transport is not None:
            transport.abort()
        self._now_unfinished(0)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        text = message and f"{status}: {HTTPStatus(status).phrase}"
        response = super().handle_error(request, status, exc, text)
        response.headers[hdrs.SERVER] = SERVER  # no application prepares the answer to what is no request
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPExpectationFailed):
            resp.text = f"{resp.status}: {resp.reason}"
        return await super().finish_response(request, resp, start_time)


async def _name_no_version(_: web.Request, response: web.StreamResponse) -> None:
    response.headers[hdrs.SERVER] = SERVER


async def tell_https(_: web.Request, response: web.StreamResponse) -> None:
    """Tell browsers to use HTTPS alone for this host, for ``Application.on_response_prepare``."""
    response.headers["Strict-Transport-Security"] = "max-age=31536000; includeSubDomains"


class BoundedNames:
    """Keep the first ``most`` names and call all further ones ``other``, which bounds the number of time series.

    So is a name that UTF-8 cannot encode: as a label it would make ``/metrics`` fail.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: set[str] = set()

    def __call__(self, name: str) -> str:
        if name not in self._names:
            if len(self._names) >= self._most or any("\ud800" <= each <= "\udfff" for each in name):
                return OTHER
            self._names.add(name)
        return name


class ConnectionLimit:
    """Bound the connections of a port and their unfinished headers, so that clients cannot exhaust its memory.

    At the bound of connections, the oldest one without a trusted request is closed. Where all had one, the new
    connection is closed. At the bound of headers, the connection with the most is closed: first of those without a
    trusted request.

    ``unfinished``: the bytes of all unfinished headers.
    """

    def __init__(self, most: int, most_unfinished: int = UNFINISHED) -> None:
        """Set the bounds: of connections, and of bytes."""
        self._most, self._most_unfinished = most, most_unfinished
        self.unfinished = 0
        self._trusted: set[asyncio.BaseProtocol] = set()
        self._server: web.Server | None = None
        self._closed = 0
        self._next_line = 0.0

    def trust(self, request: web.Request) -> None:
        """Keep the connection of a request whose signature was right."""
        self._trusted.add(request.protocol)

    def watch(self, server: web.Server) -> None:
        """Count the connections of this server."""
        self._server = server

    def arrived(self, connection: "_Connection") -> None:
        """Note a new connection. Above the bound, close the oldest one without a trusted request, or the new one."""
        connections = self._connections()
        self._trusted.intersection_update(connections)
        if len(connections) > self._most:
            next((each for each in connections if each not in self._trusted), connection).abort()

    def grew(self, grown: int) -> None:
        """Note that a connection's unfinished headers grew by so many bytes. At the bound, close the largest."""
        self.unfinished += grown
        while self.unfinished > self._most_unfinished and (
            holders := [each for each in self._connections() if each.unfinished]
        ):
            max(holders, key=lambda each: (each not in self._trusted, each.unfinished)).abort()
            self._closed += 1
        now = asyncio.get_running_loop().time()
        if self._closed and now >= self._next_line:
            _logger.warning(
                "connections closed: too many bytes of unfinished headers", connections=self._closed
            )
            self._closed, self._next_line = 0, now + LOG_EVERY

    def _connections(self) -> list[_Connection]:
        connections = () if self._server is None else self._server.connections
        return [each for each in connections if isinstance(each, _Connection) and each.transport is not None]


def private_app(
    unready: Callable[[], Awaitable[str | None]],
    routes: Iterable[web.AbstractRouteDef] = (),
    hosts: Collection[str] = (),
    middlewares: Sequence[Middleware] = (),
) -> web.Application:
    """Make the application of the private port. ``/livez`` answers as long as the event loop runs.

    Args:
        unready: answers ``/readyz``: why the service cannot take work now, or ``None`` when it can.
        routes: served beside the probes.
        hosts: names under which ``routes`` may be asked for, beside IP addresses and names of this machine or cluster.
        middlewares: stand behind the checks of the request's site and host.
    """

    async def livez(_: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    async def readyz(_: web.Request) -> web.Response:
        reason = await unready()
        if reason is None:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "not ready", "reason": reason}, status=503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not of_this_site(request):
            return web.json_response({"error": "a request of another site"}, status=403)
        if request.path not in PROBES and not is_private_name(request.headers.get(hdrs.HOST, ""), hosts):
            return web.json_response({"error": "unknown host: list it in SURELANE_API_HOSTS"}, status=403)
        return await handler(request)

    app = web.Application(client_max_size=LARGEST_BODY, middlewares=[guard, *middlewares])
    app.add_routes([web.get("/livez", livez), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    app.add_routes(routes)
    return app


def serving_private(app: web.Application, settings: ServiceSettings) -> AbstractAsyncContextManager[int]:
    """Serve the private port for the length of the block, as the settings say; yield the port."""
    return serving(
        app,
        settings.private_port,
        setting="SURELANE_PRIVATE_PORT",
        host=settings.private_host or settings.host,
        limit=ConnectionLimit(PRIVATE_CONNECTIONS),
    )


def of_this_site(request: web.Request) -> bool:
    """Return whether a request comes from this site or from a program: browsers mark those of other sites."""
    origin, host = request.headers.get(hdrs.ORIGIN), request.headers.get(hdrs.HOST, "")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return False
    if request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
        return True
    # A link from another site. The page with the link cannot read the answer.
    return request.method == hdrs.METH_GET and request.headers.get("Sec-Fetch-Mode") == "navigate"


def is_private_name(host: str, known: Collection[str] = ()) -> bool:
    """Return whether a ``Host`` header names an address, a host of this machine or cluster, or a ``known`` name.

    The owner of a public name may point it here and serve a page under it (DNS rebinding). So public names are refused.
    """
    name = host.lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    name = name.removesuffix(".")
    if "." not in name and ":" not in name:
        return True
    if name.endswith(_PRIVATE_SUFFIXES) or name in {each.lower() for each in known}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@asynccontextmanager
async def serving(
    app: web.Application,
    port: int,
    *,
    setting: str,
    host: str,
    limit: ConnectionLimit | None = None,
    **options: Any,  # noqa: ANN401 - passed on to aiohttp
) -> AsyncIterator[int]:
    """Serve ``app`` on ``port`` (0: any free one) for the length of the block; yield the port.

    Args:
        setting: the environment variable of the port, for the error's message.
        options: of aiohttp's ``AppRunner``. Requests may take ``shutdown_timeout`` (30 s) to finish at the end.

    Raises:
        SettingsError: the port is taken.
    """
    timeout = options.pop("shutdown_timeout", 30)
    app.on_response_prepare.append(_name_no_version)
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=timeout)
    options = {"access_log": None, "max_headers": MAX_HEADERS, **options}
    await runner.setup()
    listener: asyncio.Server | None = None
    try:
        if (server := runner.server) is None:
            raise RuntimeError("the server was not set up")

        def connection() -> _Connection:
            return _Connection(server, limit, **options)

        if limit is not None:
            limit.watch(server)
        try:
            given = OPENED.get(port)
            at: dict[str, Any] = {"host": host, "port": port, "reuse_address": True}
            at = {"sock": given.dup()} if given else at
            listener = await asyncio.get_running_loop().create_server(connection, **at)
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; set {setting} to a free port"
            ) from None
        yield listener.sockets[0].getsockname()[1]
    finally:
        if listener is not None:
            listener.close()
        await runner.cleanup()
