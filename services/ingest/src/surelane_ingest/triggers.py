"""Signed requests of other programs on the public port: webhooks that trigger something, and remote agents' answers.

- 200: stored, or stored before. - 400: signed, but not JSON, or never storable. - 401: an unknown name; a signature
that is missing, wrong or stale; an answer that was signed for another task. - 404: no event waits for this answer.
- 409: it is not waited for yet: try again. - 405, 408, 413, 415, 503: as for Slack's requests.

An answer must be signed with the ``webhook-id`` of its own task's answer. A signed request of another task,
or one that we sent to the agent ourselves, therefore answers nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from aiohttp import web
from pydantic import SecretBytes

from surelane.events import Inserted
from surelane.trace_context import traceparent_of
from surelane_ingest.app import JSON, RETRY_AFTER, UNSIGNED, Drain, closing
from surelane_ingest.body import Bodies, Refusal
from surelane_ingest.connections import Connections
from surelane_ingest.json_text import Json, NotJsonError, read_json
from surelane_ingest.metrics import Metrics
from surelane_ingest.refusals import Refusals
from surelane_ingest.tracing import answered
from surelane_service.intake import Intake
from surelane_service.logs import get_logger
from surelane_service.pool import RETRYABLE, UNAVAILABLE, DatabaseError
from surelane_service.probes import ConnectionLimit
from surelane_service.telemetry.setup import send_span
from surelane_service.telemetry.spans import Tracer
from surelane_service.webhooks import answer_id, keys_of, plausible, verified

CONNECTIONS = 2
"""Webhooks and answers in the database at once; further ones wait for their turn."""
TRIGGER, DISPATCH = "/v1/triggers/{name}", "/v1/dispatch/{id}"
KIND = "trigger-fire"

Answer = TypeVar("Answer")
May = Callable[[web.Request], bool]
Act = Callable[[web.Request, bytes], Awaitable[web.Response]]
Keys = Mapping[str, Sequence[SecretBytes]]
_NEVER_STORABLE = ("22", "23", "54")
_SIGNED = frozenset({400, 404, 409})
"""What only a signed request is answered: its connection stays."""

_logger = get_logger(__name__)


class Refused(Exception):  # noqa: N818 - it is an answer, not a failure
    """A request that is answered with an error."""

    def __init__(self, status: int, error: str, retry_after: str | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.retry_after = RETRY_AFTER if status == 503 else retry_after

    @classmethod
    def by(cls, refusal: Refusal) -> "Refused":
        """A refusal, as an exception."""
        return cls(refusal.status, refusal.error)


class TriggersApp:
    """The handlers behind ``/v1/triggers`` and ``/v1/dispatch``."""

    def __init__(
        self,
        *,
        triggers: Keys,
        dispatch: Keys,
        bodies: Bodies,
        database: Connections,
        budget: timedelta,
        metrics: Metrics,
        drain: Drain,
        refusals: Refusals,
        connections: ConnectionLimit,
        tracer: Tracer | None,
    ) -> None:
        """Makes the handlers.

        Args:
            triggers: the keys of each trigger, by its name.
            dispatch: the keys of each remote agent, by its name.
            bodies: reads bodies within bounds.
            database: lends connections to it.
            budget: how long a request may wait for the database.
            metrics: counts answers and events.
            drain: whether the service is stopping.
            refusals: logs them.
            connections: of the public port; those with a right signature are kept.
            tracer: makes spans, where tracing is on.
        """
        self._triggers = triggers
        self._dispatch = dispatch
        self._bodies = bodies
        self._database = database
        self._budget = budget.total_seconds()
        self._metrics = metrics
        self._drain = drain
        self._refusals = refusals
        self._connections = connections
        self._tracer = tracer
        self._turn = asyncio.Semaphore(CONNECTIONS)

    def routes(self) -> list[web.RouteDef]:
        """The routes, and the refusals of other methods."""
        return [
            web.post(TRIGGER, self._answering(TRIGGER, self._may_fire, self._fire)),
            web.post(DISPATCH, self._answering(DISPATCH, self._may_answer, self._take_answer)),
            *(web.route("*", path, self._method_not_allowed) for path in (TRIGGER, DISPATCH)),
        ]

    def _answering(self, route: str, may: May, act: Act) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            try:
                response = await self._with_body(request, may, act)
            except Refused as refused:
                response = self._refused(route, refused)
            self._metrics.answers[route, response.status] += 1
            return response

        return answer

    async def _with_body(self, request: web.Request, may: May, act: Act) -> web.Response:
        if self._drain.started:
            raise Refused(503, "stopping")
        if not may(request):
            raise Refused.by(UNSIGNED)
        refusal = self._bodies.refusal(request, JSON)
        if refusal is not None:
            raise Refused.by(refusal)
        with self._bodies.body() as arriving:
            body = await arriving.read(request)
            if isinstance(body, Refusal):
                raise Refused.by(body)
            return await act(request, body)

    def _may_fire(self, request: web.Request) -> bool:
        return request.match_info["name"] in self._triggers and plausible(request.headers) is not None

    def _may_answer(self, request: web.Request) -> bool:
        return bool(self._dispatch) and plausible(request.headers) == answer_id(request.match_info["id"])

    async def _fire(self, request: web.Request, body: bytes) -> web.Response:
        name = request.match_info["name"]
        webhook_id = verified(request.headers, body, keys_of(self._triggers, name))
        if webhook_id is None:
            raise Refused.by(UNSIGNED)
        self._connections.trust(request)
        payload = _json(body)
        with send_span(self._tracer, f"webhook:{name}:{webhook_id}", KIND) as span:
            traceparent = traceparent_of(span)
            inserted = await self._stored(
                lambda queue: queue.fire_trigger(name, webhook_id, payload.text, traceparent)
            )
            answered(span, inserted)
        self._count(inserted, payload)
        _logger.debug("webhook stored", trigger=name, id=inserted.id, duplicate=inserted.duplicate)
        return web.json_response({"id": inserted.id, "duplicate": inserted.duplicate})

    async def _take_answer(self, request: web.Request, body: bytes) -> web.Response:
        agents = [
            name
            for name in self._dispatch
            if verified(request.headers, body, keys_of(self._dispatch, name)) is not None
        ]
        if not agents:
            raise Refused.by(UNSIGNED)
        self._connections.trust(request)
        identity = _identity(request.match_info["id"])
        result = _json(body).text
        match await self._stored(lambda queue: queue.answer_dispatch(identity, agents, result)):
            case "done":
                return web.json_response({"id": identity})
            case "running":
                raise Refused(409, "the answer is not waited for yet: try again", retry_after="1")
            case _:
                raise Refused(404, "nothing waits for this answer")

    async def _stored(self, store: Callable[[Intake], Awaitable[Answer]]) -> Answer:
        try:
            async with asyncio.timeout(self._budget), self._turn, self._database.lend() as connection:
                return await store(Intake(connection))
        except (*UNAVAILABLE, *RETRYABLE) as error:
            _logger.warning("database away", error=type(error).__name__)
            raise Refused(503, "the database did not answer in time") from None
        except DatabaseError as error:
            if str(error.sqlstate or "")[:2] in _NEVER_STORABLE:
                raise Refused(400, "the database cannot hold this") from None
            _logger.warning("the database refuses", error=type(error).__name__)
            raise Refused(503, "the database takes nothing") from None

    def _count(self, inserted: Inserted, payload: Json) -> None:
        if inserted.duplicate:
            self._metrics.duplicates += 1
            return
        self._metrics.sent(KIND)
        self._metrics.altered += payload.altered

    async def _method_not_allowed(self, _: web.Request) -> web.Response:
        self._metrics.answers["other", 405] += 1
        return closing(web.json_response({"error": "POST only"}, status=405, headers={"Allow": "POST"}))

    def _refused(self, route: str, refused: Refused) -> web.Response:
        self._refusals.note(route, refused.status, refused.error)
        headers = {"Retry-After": refused.retry_after} if refused.retry_after else None
        response = web.json_response({"error": refused.error}, status=refused.status, headers=headers)
        return response if refused.status in _SIGNED else closing(response)


def _json(body: bytes) -> Json:
    try:
        return read_json(body.decode())
    except UnicodeDecodeError:
        raise Refused(400, "not JSON") from None
    except NotJsonError as error:
        raise Refused(400, str(error)) from None


def _identity(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Refused(404, "nothing waits for this answer")
    return int(text)
