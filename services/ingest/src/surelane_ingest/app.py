"""The public port: what each of Slack's requests is answered, and with which status.

- 200: stored, a duplicate, or sound but not taken (another type, the app's own message). - 400: signed, but
not JSON, not an event, or never storable: with ``x-slack-no-retry``. Garbled HTTP: without. - 401: no
signature, a wrong or stale one, or hostile headers; told from the headers alone where it can be. - 404, 405:
no such path; not a POST. - 408: the body took too long to arrive. - 413: the body is too large. - 415: not
the content type Slack uses here, or compressed. - 503: not known to be stored: the database is away, too much
waits, or the service is stopping. Slack tries again.

A refusal of a request without a valid signature ends its connection, so that one client cannot queue further requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from aiohttp import web

from surelane.events import Inserted
from surelane.trace_context import traceparent_of
from surelane_ingest.body import Bodies, Refusal
from surelane_ingest.envelope import (
    Challenge,
    Envelope,
    Ignore,
    Malformed,
    RateLimited,
    Take,
    read_command,
    read_event,
    read_interaction,
)
from surelane_ingest.lane import NotStored
from surelane_ingest.refusals import Refusals
from surelane_ingest.signature import Signatures
from surelane_ingest.subscriptions import Subscriptions
from surelane_ingest.tracing import RETRY, answered, delivered
from surelane_ingest.writer import Writer
from surelane_service.logs import get_logger
from surelane_service.probes import ConnectionLimit
from surelane_service.telemetry.setup import send_span
from surelane_service.telemetry.spans import Tracer

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
RETRY_AFTER = "2"
UNSIGNED = Refusal(401, "the signature is missing, wrong or stale")

_logger = get_logger(__name__)

Read = Callable[[bytes], Envelope]


@dataclass
class Drain:
    """Whether the service is stopping: from then on it takes nothing new."""

    started: bool = False


class SlackApp:
    """The handlers behind Slack's three URLs."""

    def __init__(
        self,
        *,
        signatures: Signatures,
        subscriptions: Subscriptions,
        bodies: Bodies,
        writer: Writer,
        drain: Drain,
        refusals: Refusals,
        connections: ConnectionLimit,
        tracer: Tracer | None,
    ) -> None:
        self._signatures = signatures
        self._subscriptions = subscriptions
        self._bodies = bodies
        self._writer = writer
        self._metrics = writer.metrics
        self._drain = drain
        self._refusals = refusals
        self._connections = connections
        self._tracer = tracer
        # Bound once: a logger that is not costs more to silence than the rest of answering a request.
        self._logger = _logger.bind()

    def routes(self) -> list[web.RouteDef]:
        """The routes, the refusals of other methods and paths last."""
        posts = {
            "/slack/events": self.events,
            "/slack/commands": self.commands,
            "/slack/interactions": self.interactions,
        }
        return [
            *(web.post(path, handler) for path, handler in posts.items()),
            *(web.route("*", path, self._method_not_allowed) for path in posts),
            web.route("*", "/{path:.*}", self._not_found),
        ]

    async def events(self, request: web.Request) -> web.Response:
        """The Events API."""
        return await self._answer(request, JSON, lambda body: read_event(body, self._subscriptions))

    async def commands(self, request: web.Request) -> web.Response:
        """Slash commands."""
        return await self._answer(request, FORM, read_command)

    async def interactions(self, request: web.Request) -> web.Response:
        """Buttons, menus, shortcuts and modals."""
        return await self._answer(request, FORM, read_interaction)

    async def _answer(self, request: web.Request, media_type: str, read: Read) -> web.Response:
        response = await self._decide(request, media_type, read)
        self._metrics.answers[request.path, response.status] += 1
        return response

    async def _decide(self, request: web.Request, media_type: str, read: Read) -> web.Response:
        if self._drain.started:
            return self._refused(request, Refusal(503, "stopping"))
        timestamps = request.headers.getall("X-Slack-Request-Timestamp", ())
        signatures = request.headers.getall("X-Slack-Signature", ())
        if not self._signatures.plausible(timestamps, signatures):
            return self._refused(request, UNSIGNED)
        refusal = self._bodies.refusal(request, media_type)
        if refusal is not None:
            return self._refused(request, refusal)
        with self._bodies.body() as arriving:
            body = await arriving.read(request)
            if isinstance(body, Refusal):
                return self._refused(request, body)
            if not self._signatures.valid(body, timestamps, signatures):
                return self._refused(request, UNSIGNED)
            self._connections.trust(request)
            return await self._act(request, read(body))

    async def _act(self, request: web.Request, envelope: Envelope) -> web.Response:
        match envelope:
            case Take():
                return await self._store(request, envelope)
            case Challenge(challenge):
                self._logger.info("url verified")
                return web.json_response({"challenge": challenge})
            case Ignore(reason):
                self._metrics.ignored[reason] += 1
                self._logger.debug("request ignored", reason=reason)
                return web.Response()
            case RateLimited(team, minute):
                self._metrics.rate_limited += 1
                self._logger.warning(
                    "slack drops events of a workspace that has too many", team=team, minute=minute
                )
                return web.Response()
            case Malformed(reason):
                return self._useless(request, reason)
            case _:
                assert_never(envelope)

    async def _store(self, request: web.Request, event: Take) -> web.Response:
        answer = await self._insert(request, event)
        if isinstance(answer, NotStored):
            self._metrics.sent(event.kind, answer.name.lower())
            if answer is NotStored.UNSTORABLE:
                return self._useless(request, answer.value, event)
            return self._refused(request, Refusal(503, answer.value), event)
        if answer.duplicate:
            self._metrics.duplicates += 1
        else:
            self._metrics.sent(event.kind)
        if event.altered:
            self._metrics.altered += 1
            self._logger.warning("event stored with replaced characters", event_id=event.key, kind=event.kind)
        self._logger.debug(
            "event stored", event_id=event.key, kind=event.kind, id=answer.id, duplicate=answer.duplicate
        )
        return web.Response()

    async def _insert(self, request: web.Request, event: Take) -> Inserted | NotStored:
        if self._tracer is None:
            return await self._writer.store(event.body, event.key)
        with send_span(self._tracer, event.key, event.kind) as span:
            delivered(span, request.headers.get(RETRY))
            answer = await self._writer.store(event.body, event.key, traceparent_of(span))
            answered(span, answer)
            return answer

    async def _method_not_allowed(self, _: web.Request) -> web.Response:
        self._metrics.answers["other", 405] += 1
        return closing(web.json_response({"error": "POST only"}, status=405, headers={"Allow": "POST"}))

    async def _not_found(self, _: web.Request) -> web.Response:
        self._metrics.answers["other", 404] += 1
        return closing(web.json_response({"error": "no such path"}, status=404))

    def _refused(self, request: web.Request, refusal: Refusal, event: Take | None = None) -> web.Response:
        self._log_refusal(request, refusal.status, refusal.error, event)
        response = web.json_response({"error": refusal.error}, status=refusal.status)
        if refusal.status == 503:
            response.headers["Retry-After"] = RETRY_AFTER
        return closing(response) if event is None else response

    def _useless(self, request: web.Request, reason: str, event: Take | None = None) -> web.Response:
        """Refuses a signed request that no retry can save, and tells Slack so."""
        self._log_refusal(request, 400, reason, event)
        return web.json_response({"error": reason}, status=400, headers={"x-slack-no-retry": "1"})

    def _log_refusal(self, request: web.Request, status: int, reason: str, event: Take | None) -> None:
        if event is None:
            self._refusals.note(request.path, status, reason)
        else:
            self._logger.warning(
                "request refused",
                path=request.path,
                status=status,
                reason=reason,
                event_id=event.key,
                kind=event.kind,
            )


def closing(response: web.Response) -> web.Response:
    """The response, after which the connection is closed."""
    response.force_close()
    return response
