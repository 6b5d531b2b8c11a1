"""The public port. Every request takes the same steps: check, read, verify, then store and answer.

- 200: stored, a duplicate, or sound but not taken (another type, the app's own message).
- 400: garbled HTTP; or signed, but never storable. Slack's carry ``x-slack-no-retry``.
- 401: the signature is missing, wrong or stale. The headers decide this where they can, before the body is read.
- 404, 405: no such path; not a POST.
- 408, 413, 415: the body is too slow, too large, or of another type or compressed.
- 503: not known to be stored: the database is away, too much waits, or the service is stopping. Try again.

A refusal of a request without a valid signature ends its connection, so that one client cannot queue more requests.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from surelane_ingest.limits import Refusals
from surelane_ingest.metrics import Metrics
from surelane_ingest.request import Bodies, Refused, unsigned
from surelane_service.logs import get_logger
from surelane_service.probes import ConnectionLimit

RETRY_AFTER = "2"
"""Seconds after which a client should try again."""

_logger = get_logger(__name__)


@dataclass
class Drain:
    """Whether the service is stopping. From then on it takes no new requests."""

    started: bool = False


class Endpoint(Protocol):
    """A URL that takes signed requests."""

    @property
    def path(self) -> str:
        """Its route, which also names it in metrics and logs."""

    @property
    def media_type(self) -> str:
        """The content type of its bodies."""

    def plausible(self, request: web.Request) -> bool:
        """Return whether the headers can be those of a signed request."""

    def senders(self, request: web.Request, body: bytes) -> Sequence[str]:
        """Return the senders whose secret signed the request; none: it is refused."""

    async def take(self, request: web.Request, body: bytes, senders: Sequence[str]) -> web.Response:
        """Store a verified request and answer it.

        Raises:
            Refused: it is answered with an error.
        """


class App:
    """The routes of the public port, and the steps that lead each request to its endpoint."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        bodies: Bodies,
        metrics: Metrics,
        drain: Drain,
        refusals: Refusals,
        connections: ConnectionLimit,
    ) -> None:
        """Make the app.

        Args:
            endpoints: the URLs that it serves.
            bodies: reads bodies within their bounds.
            metrics: counts the answers.
            drain: says when to refuse new requests.
            refusals: logs refused requests.
            connections: keeps a connection that carried a verified request when too many are open.
        """
        self._endpoints = endpoints
        self._bodies = bodies
        self._metrics = metrics
        self._drain = drain
        self._refusals = refusals
        self._connections = connections

    def routes(self) -> list[web.RouteDef]:
        """Return the routes; those that refuse other methods and paths come last."""
        return [
            *(web.post(each.path, self._answering(each)) for each in self._endpoints),
            *(web.route("*", each.path, self._method_not_allowed) for each in self._endpoints),
            web.route("*", "/{path:.*}", self._not_found),
        ]

    def _answering(self, endpoint: Endpoint) -> Callable[[web.Request], Awaitable[web.Response]]:
        path = endpoint.path

        async def answer(request: web.Request) -> web.Response:
            verified = False
            try:
                self._check(endpoint, request)
                with self._bodies.body() as arriving:
                    body = await arriving.read(request)
                    senders = endpoint.senders(request, body)
                    if not senders:
                        raise unsigned()
                    verified = True
                    self._connections.trust(request)
                    response = await endpoint.take(request, body, senders)
            except Refused as refused:
                response = self._refusal(path, refused)
                if not verified:
                    response.force_close()
            self._metrics.answers[path, response.status] += 1
            return response

        return answer

    def _check(self, endpoint: Endpoint, request: web.Request) -> None:
        if self._drain.started:
            raise Refused(503, "stopping")
        if not endpoint.plausible(request):
            raise unsigned()
        self._bodies.check(request, endpoint.media_type)

    def _refusal(self, path: str, refused: Refused) -> web.Response:
        if refused.event:
            _logger.warning(
                "request refused", path=path, status=refused.status, reason=refused.error, **refused.event
            )
        else:
            self._refusals.note(path, refused.status, refused.error)
        response = web.json_response(
            {"error": refused.error}, status=refused.status, headers=refused.headers or None
        )
        if refused.status == 503:
            response.headers["Retry-After"] = RETRY_AFTER
        return response

    async def _method_not_allowed(self, _: web.Request) -> web.Response:
        return self._unknown("POST only", 405, {"Allow": "POST"})

    async def _not_found(self, _: web.Request) -> web.Response:
        return self._unknown("no such path", 404)

    def _unknown(self, error: str, status: int, headers: dict[str, str] | None = None) -> web.Response:
        self._metrics.answers["other", status] += 1
        response = web.json_response({"error": error}, status=status, headers=headers)
        response.force_close()
        return response
