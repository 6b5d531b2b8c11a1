"""The public port. Every request takes the same steps: check, read, verify, then store and answer.

The headers decide where they can, before the body is read. ``docs/ingest.md`` says what each status means. A refusal
without a valid signature ends the connection, so that one client cannot queue more requests.
"""

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from aiohttp import ClientPayloadError, hdrs, web
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Handler
from opentelemetry.trace import SpanKind

from surelane.trace_context import span_context_of
from surelane_ingest.metrics import IngestMetrics
from surelane_service.logs import get_logger
from surelane_service.probes import ConnectionLimit
from surelane_service.telemetry.spans import Tracer, failed, within

KEEP_ALIVE = 75.0
"""Seconds an idle connection is kept: longer than the usual 60 of load balancers, so that they close it first.

A server that closed first could do so while the load balancer sends the next request.
"""

MAX_FIELD = 4096
"""The most bytes of a header, and of the request line.

Slack and the proxies on the way send about a hundred. aiohttp holds the headers twice.
"""

LINGER = 1.0
"""Seconds for which the rest of a refused body is read and dropped, so that the client can read its answer."""

INTERVAL = 10.0
"""Seconds that one log line covers. A sender without a secret can cause thousands of refusals per second."""

_logger = get_logger(__name__)

_Sort = tuple[str, str, int, str]


class Refusals:
    """Log the first refusal of a sort at once, then one line per interval with the number of further ones.

    A sort is a route, a status and a reason. All three are ours, so there are few sorts.
    """

    def __init__(self) -> None:
        self._further: dict[_Sort, int] = {}

    def note(self, path: str, status: int, reason: str, message: str = "request refused") -> None:
        """Note a request, or with an empty path bytes that were none."""
        sort = (message, path, status, reason)
        if sort in self._further:
            self._further[sort] += 1
        else:
            self._write(sort)

    def close(self) -> None:
        """Log the refusals that no line has counted yet."""
        for sort, further in self._further.items():
            if further:
                _write(sort, further=further)
        self._further.clear()

    def _write(self, sort: _Sort, **further: int) -> None:
        _write(sort, **further)
        self._further[sort] = 0
        asyncio.get_running_loop().call_later(INTERVAL, self._end, sort)

    def _end(self, sort: _Sort) -> None:
        if further := self._further.pop(sort, 0):
            self._write(sort, further=further)


def _write(sort: _Sort, **further: int) -> None:
    message, path, status, reason = sort
    level = logging.WARNING if path else logging.INFO
    about = {"path": path, "status": status} if path else {}
    _logger.log(level, message, reason=reason, **about, **further)


def server_options(drain_timeout: timedelta, refusals: Refusals) -> Mapping[str, Any]:
    """Return the options of aiohttp's ``AppRunner`` for the public port."""
    logger = logging.getLogger("surelane_ingest.http")
    logger.filters[:] = [_WithoutGarbled(refusals)]
    return {
        "auto_decompress": False,  # compressed bodies are refused, and never inflated
        "keepalive_timeout": KEEP_ALIVE,
        "lingering_time": LINGER,
        "max_field_size": MAX_FIELD,
        "max_line_size": MAX_FIELD,
        "shutdown_timeout": drain_timeout.total_seconds(),
        "logger": logger,
    }


class _WithoutGarbled(logging.Filter):
    """Count garbled HTTP without its bytes. aiohttp's own line would quote them, with a stack trace."""

    def __init__(self, refusals: Refusals) -> None:
        super().__init__()
        self._refusals = refusals

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        self._refusals.note("", 400, type(error).__name__, "garbled HTTP")
        return False


JSON = "application/json"
FORM = "application/x-www-form-urlencoded"

RETRY_AFTER = "2"
"""Seconds after which a client should try again."""

READ_WITHIN = 3.0
"""Seconds a body may take to arrive. Slack gives up on the answer after three."""

SMALL = 64 * 1024
"""Largest small body, in bytes. A message of Slack's has a few thousand bytes."""

LARGE_SHARE = 0.75
"""Part of the memory that bodies over :data:`SMALL` may take together. The rest is kept for small ones."""

OTHER = "_OTHER"
"""The method of a span whose request has none of HTTP's."""
MAX_PATH = 200
"""The most characters of a path on a span."""

Answering = Callable[[web.Request], Awaitable[web.Response]]
"""Answers the requests of a route."""


class RequestRefused(Exception):  # noqa: N818 - it is an answer, not a failure
    """A request that is answered with an error, which quotes nothing that the client sent.

    ``event``: the log fields that name the event of a verified request.
    """

    def __init__(
        self,
        status: int,
        error: str,
        *,
        headers: Mapping[str, str] | None = None,
        event: Mapping[str, str | None] | None = None,
    ) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.headers = headers or {}
        self.event = event or {}


def unsigned() -> RequestRefused:
    return RequestRefused(401, "the signature is missing, wrong or stale")


class Bodies:
    """Read bodies within their bounds, and count the bytes that unanswered requests hold (``held_bytes``).

    A body counts with the bytes that have arrived. Its announced length costs a client nothing, so counting that
    would let a few slow clients take all the memory.
    """

    def __init__(self, largest: int, memory: int) -> None:
        """Set the bounds, in bytes: ``largest`` for each body, ``memory`` for all together."""
        self.largest, self.read_within = largest, READ_WITHIN
        self.held_bytes = 0
        self._memory = memory
        self._large_memory = max(int(memory * LARGE_SHARE), largest)
        self._large_bytes = 0

    def check(self, request: web.Request, media_types: Collection[str]) -> None:
        """Refuse another content type (415), a compressed body (415), and one that is too large (413)."""
        if request.content_type not in media_types:
            raise RequestRefused(415, f"the content type must be {' or '.join(media_types)}")
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise RequestRefused(415, "compressed bodies are not taken")
        if (request.content_length or 0) > self.largest:
            raise self.too_large()

    def too_large(self) -> RequestRefused:
        return RequestRefused(413, f"the body is larger than {self.largest} bytes")

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytes]:
        """Read the raw body of a request, which counts until the end of the block.

        Raises:
            RequestRefused: it is cut short (400), too slow (408) or too large (413), or no memory is left (503).
            ConnectionError: the client went away, so no request is left to answer.
        """
        size = 0
        pieces: list[bytes] = []
        try:
            try:
                async with asyncio.timeout(self.read_within):
                    while piece := await request.content.readany():
                        if size + len(piece) > self.largest:
                            raise self.too_large()
                        if not self.take(size, size + len(piece)):
                            raise RequestRefused(503, "too many requests at once")
                        size += len(piece)
                        pieces.append(piece)
            except TimeoutError:
                raise RequestRefused(
                    408, f"the body took longer than {self.read_within:.0f} seconds"
                ) from None
            except (web.RequestPayloadError, ClientPayloadError):
                raise RequestRefused(400, "the body is cut short or garbled") from None
            body, pieces = b"".join(pieces), []  # the body alone takes memory from here on
            yield body
        finally:
            self.free(size)

    def take(self, before: int, after: int) -> bool:
        """Count a body that grew from ``before`` to ``after`` bytes; return false if there is no memory for it."""
        grown = after - before
        if self.held_bytes + grown > self._memory:
            return False
        if after > SMALL:
            large = after if before <= SMALL else grown
            if self._large_bytes + large > self._large_memory:
                return False
            self._large_bytes += large
        self.held_bytes += grown
        return True

    def free(self, size: int) -> None:
        self.held_bytes -= size
        if size > SMALL:
            self._large_bytes -= size


class SignedRoute(Protocol):
    """A URL that takes signed requests. Its path is its route, and names it in metrics and logs."""

    @property
    def path(self) -> str: ...

    @property
    def media_types(self) -> Collection[str]: ...

    @property
    def refused(self) -> Callable[[web.Request, RequestRefused], None] | None:
        """Notes a signed request that is refused; ``None``: the route does that itself."""

    def plausible(self, request: web.Request) -> bool:
        """Return whether the headers can be those of a signed request."""

    def senders(self, request: web.Request, body: bytes) -> Sequence[str]:
        """Return the senders whose secret signed the request; none: it is refused."""

    async def take(
        self, request: web.Request, body: bytes, senders: Sequence[str], arrived: float
    ) -> web.Response:
        """Store a verified request, ``arrived`` by the loop's clock. Answer it, or raise :class:`RequestRefused`."""


@dataclass(frozen=True)
class App:
    """The routes of the public port, and the steps that lead each request to its endpoint.

    ``drain``: set once the service stops, and takes no new requests. ``off``: paths that are switched off, and why.
    """

    endpoints: Sequence[SignedRoute]
    bodies: Bodies
    metrics: IngestMetrics
    drain: asyncio.Event
    refusals: Refusals
    connections: ConnectionLimit
    off: Mapping[str, str]

    def routes(self) -> list[web.RouteDef]:
        """Return the routes; refusals of other methods and paths come last."""
        wrong_method = self._unknown("POST only", 405, {"Allow": "POST"})
        return [
            *(web.post(each.path, self._answering(each)) for each in self.endpoints),
            *(web.route("*", each.path, wrong_method) for each in self.endpoints),
            *(web.route("*", path, self._unknown(why, 404)) for path, why in self.off.items()),
            web.route("*", "/{path:.*}", self._unknown("no such path", 404)),
        ]

    def _answering(self, endpoint: SignedRoute) -> Answering:
        path = endpoint.path

        async def answer(request: web.Request) -> web.Response:
            arrived = asyncio.get_running_loop().time()
            verified = False
            try:
                self._check(endpoint, request)
                async with self.bodies.read(request) as body:
                    senders = endpoint.senders(request, body)
                    if not senders:
                        raise unsigned()
                    verified = True
                    self.connections.trust(request)
                    response = await endpoint.take(request, body, senders, arrived)
            except RequestRefused as refused:
                response = self._refusal(path, refused)
                if not verified:
                    response.force_close()
                elif endpoint.refused is not None:
                    endpoint.refused(request, refused)
            self.metrics.answers[path, response.status] += 1
            return response

        return answer

    def _check(self, endpoint: SignedRoute, request: web.Request) -> None:
        if self.drain.is_set():
            raise RequestRefused(503, "stopping")
        if not endpoint.plausible(request):
            raise unsigned()
        self.bodies.check(request, endpoint.media_types)

    def _refusal(self, path: str, refused: RequestRefused) -> web.Response:
        if refused.event:
            _logger.warning(
                "request refused", path=path, status=refused.status, reason=refused.error, **refused.event
            )
        else:
            self.refusals.note(path, refused.status, refused.error)
        response = web.json_response(
            {"error": refused.error}, status=refused.status, headers=refused.headers or None
        )
        if refused.status == 503:
            response.headers["Retry-After"] = RETRY_AFTER
        return response

    def _unknown(self, error: str, status: int, headers: dict[str, str] | None = None) -> Answering:
        async def answer(_: web.Request) -> web.Response:
            self.metrics.answers["other", status] += 1
            response = web.json_response({"error": error}, status=status, headers=headers)
            response.force_close()
            return response

        return answer


def traced(tracer: Tracer, routes: Iterable[web.RouteDef]) -> Iterator[web.RouteDef]:
    """Wrap the handlers of ``routes``, so that each answers within a span of its own.

    It carries the request's method, path and status. Queries, headers and hosts may hold secrets.
    """
    for route in routes:
        yield web.RouteDef(route.method, route.path, _within_span(tracer, route), route.kwargs)


def _within_span(tracer: Tracer, route: web.RouteDef) -> Handler:
    handler: Handler = route.handler

    async def answer(request: web.Request) -> web.StreamResponse:
        trace_id = tracer.new_trace()
        if not trace_id:
            return await handler(request)
        method = request.method if request.method in hdrs.METH_ALL else OTHER
        attributes = {
            "http.request.method": method,
            "http.route": route.path,
            "url.scheme": "http",
            # As an exporter can encode it: a client may send any bytes.
            "url.path": request.path[:MAX_PATH].encode("utf-8", "replace").decode(),
        }
        # Linked, not continued. Otherwise any client could choose the trace and have each of its requests sampled.
        remote = span_context_of(request.headers.get("traceparent"))
        links = [remote] if remote else []
        span = tracer.start(f"{method} {route.path}", SpanKind.SERVER, attributes, trace_id, links=links)
        with within(span):
            response = await handler(request)
            span.set_attribute("http.response.status_code", response.status)
            if response.status >= 500:
                failed(span, str(response.status))
            return response

    return answer
