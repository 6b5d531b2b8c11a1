"""Signed requests of other programs on the public port: webhooks that trigger something, and remote agents' answers.

- 200: stored, or stored before. - 400: signed, but not JSON, or never storable. - 401: an unknown name, or a signature
that is missing, wrong or stale. - 404: nobody waits for this answer, or no longer. - 409: it is not waited for yet: try
again. - 405, 408, 413, 415, 503: as for Slack's requests.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from aiohttp import web
from pydantic import SecretBytes

from surelane import Queue
from surelane.events import Inserted
from surelane.logs import get_logger
from surelane.pool import RETRYABLE, UNAVAILABLE, DatabaseError
from surelane.spans import Tracer
from surelane.telemetry import send_span, traceparent_of
from surelane.webhooks import keys_of, verified
from surelane_ingest.app import JSON, RETRY_AFTER, Drain
from surelane_ingest.body import Bodies, Refusal
from surelane_ingest.connections import Connections
from surelane_ingest.json_text import Json, NotJsonError, read_json
from surelane_ingest.metrics import Metrics
from surelane_ingest.tracing import answered

CONNECTIONS = 2
"""Webhooks and answers in the database at once; further ones wait for their turn."""
TRIGGER, DISPATCH = "/v1/triggers/{name}", "/v1/dispatch/{id}"
KIND = "trigger-fire"

Answer = TypeVar("Answer")
Keys = Mapping[str, Sequence[SecretBytes]]
_NEVER_STORABLE = ("22", "23", "54")

_logger = get_logger(__name__)


class Refused(Exception):  # noqa: N818 - it is an answer, not a failure
    """A request that is answered with an error."""

    def __init__(self, status: int, error: str, retry_after: str | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.retry_after = RETRY_AFTER if status == 503 else retry_after


class TriggersApp:
    """The handlers behind ``/v1/triggers`` and ``/v1/dispatch``."""

    def __init__(
        self,
        *,
        triggers: Keys,
        dispatch: Keys,
        bodies: Bodies,
        connections: Connections,
        budget: timedelta,
        metrics: Metrics,
        drain: Drain,
        tracer: Tracer | None,
    ) -> None:
        """Makes the handlers.

        Args:
            triggers: the keys of each trigger, by its name.
            dispatch: the keys of each remote agent, by its name.
            bodies: reads bodies within bounds.
            connections: to the database.
            budget: how long a request may wait for the database.
            metrics: counts answers and events.
            drain: whether the service is stopping.
        """
        self._triggers = triggers
        self._dispatch = dispatch
        self._bodies = bodies
        self._connections = connections
        self._budget = budget.total_seconds()
        self._metrics = metrics
        self._drain = drain
        self._tracer = tracer
        self._turn = asyncio.Semaphore(CONNECTIONS)

    def routes(self) -> list[web.RouteDef]:
        """The routes, and the refusals of other methods."""
        return [
            web.post(TRIGGER, self._answering(TRIGGER, self._fire)),
            web.post(DISPATCH, self._answering(DISPATCH, self._take_answer)),
            *(web.route("*", path, self._method_not_allowed) for path in (TRIGGER, DISPATCH)),
        ]

    def _answering(
        self, route: str, act: Callable[[web.Request, bytes], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            try:
                response = await self._with_body(request, act)
            except Refused as refused:
                response = _refused(route, refused)
            self._metrics.answers[route, response.status] += 1
            return response

        return answer

    async def _with_body(
        self, request: web.Request, act: Callable[[web.Request, bytes], Awaitable[web.Response]]
    ) -> web.Response:
        if self._drain.started:
            raise Refused(503, "stopping")
        size = self._bodies.size(request)
        refusal = self._bodies.refusal(request, size, JSON)
        if refusal is not None:
            raise Refused(refusal.status, refusal.error)
        with self._bodies.held(size):
            body = await self._bodies.read(request)
            if isinstance(body, Refusal):
                raise Refused(body.status, body.error)
            return await act(request, body)

    async def _fire(self, request: web.Request, body: bytes) -> web.Response:
        name = request.match_info["name"]
        webhook_id = verified(request.headers, body, keys_of(self._triggers, name))
        if webhook_id is None:
            raise Refused(401, "the signature is missing, wrong or stale")
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
            raise Refused(401, "the signature is missing, wrong or stale")
        identity = _identity(request.match_info["id"])
        result = _json(body).text
        match await self._stored(lambda queue: queue.answer_dispatch(identity, agents, result)):
            case "done":
                return web.json_response({"id": identity})
            case "running":
                raise Refused(409, "the answer is not waited for yet: try again", retry_after="1")
            case _:
                raise Refused(404, "nothing waits for this answer")

    async def _stored(self, store: Callable[[Queue], Awaitable[Answer]]) -> Answer:
        try:
            async with asyncio.timeout(self._budget), self._turn, self._connections.lend() as connection:
                return await store(Queue(connection))
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
        return web.json_response({"error": "POST only"}, status=405, headers={"Allow": "POST"})


def _json(body: bytes) -> Json:
    try:
        return read_json(body.decode())
    except (NotJsonError, UnicodeDecodeError):
        raise Refused(400, "the body is not JSON") from None


def _identity(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Refused(404, "nothing waits for this answer")
    return int(text)


def _refused(route: str, refused: Refused) -> web.Response:
    _logger.warning("request refused", path=route, status=refused.status, reason=refused.error)
    headers = {"Retry-After": refused.retry_after} if refused.retry_after else None
    return web.json_response({"error": refused.error}, status=refused.status, headers=headers)
