"""Signed requests of other programs: webhooks, and remote agents' answers.

An answer must be signed with the ``webhook-id`` of its own task's answer. A signed request about another task,
or our own request to the agent sent back to us, therefore answers nothing.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeVar

from aiohttp import web
from pydantic import SecretBytes

from surelane import errors
from surelane.codec import RESULT, Codec, Location, SealedError
from surelane_ingest.app import JSON, RequestRefused
from surelane_ingest.json_text import Json, NotJsonError, read_json
from surelane_ingest.metrics import IngestMetrics
from surelane_ingest.writer import Connections, NotStored, answered, send_span
from surelane_service.intake import Intake
from surelane_service.logs import get_logger
from surelane_service.telemetry.spans import Tracer, within
from surelane_service.webhooks import ID, answer_id, keys_of, plausible, verified

CONNECTIONS = 2
"""Webhooks and answers that use the database at once. Further ones wait for their turn, within the budget."""
KIND = "trigger-fire"

Answer = TypeVar("Answer")
Secrets = Mapping[str, Sequence[SecretBytes]]
"""The keys of each sender, by its name."""

_logger = get_logger(__name__)


class Turns:
    """Call the database for a request in turn, within the budget and :data:`CONNECTIONS`."""

    def __init__(self, connections: Connections) -> None:
        self._intake, self._budget = Intake(connections.pool), connections.budget
        self._turn = asyncio.Semaphore(CONNECTIONS)

    async def __call__(self, call: Callable[[Intake], Awaitable[Answer]], sent: str) -> Answer:
        """Return what ``call`` does with ``sent``, JSON text.

        ``RequestRefused``: the database cannot hold that (400), or is away, or refuses more than this (503).
        """
        try:
            async with asyncio.timeout(self._budget), self._turn:
                return await call(self._intake)
        except (errors.DatabaseUnavailable, errors.TransientConflict, TimeoutError) as error:
            _logger.warning(NotStored.UNAVAILABLE.value, **errors.described(error))
            raise RequestRefused(503, NotStored.UNAVAILABLE.value) from None
        except errors.DatabaseRefused as error:
            if isinstance(error, errors.InvalidInput) and await self._intake.calls.refuses_alone(sent):
                raise RequestRefused(400, NotStored.UNSTORABLE.value) from None
            _logger.warning(NotStored.REFUSED.value, **errors.described(error))
            raise RequestRefused(503, NotStored.REFUSED.value) from None


@dataclass(frozen=True, slots=True)
class TriggerUrl:
    """The URL of webhooks: each stores an event of kind ``trigger-fire``, once per ``webhook-id``."""

    secrets: Secrets
    call: Turns
    metrics: IngestMetrics
    tracer: Tracer | None
    codec: Codec
    refused: Callable[[web.Request, RequestRefused], None]
    path: str = "/v1/triggers/{name}"
    media_types: Collection[str] = (JSON,)

    def plausible(self, request: web.Request) -> bool:
        return request.match_info["name"] in self.secrets and plausible(request.headers) is not None

    def senders(self, request: web.Request, body: bytes) -> Sequence[str]:
        return _signers(request, body, self.secrets, [request.match_info["name"]])

    async def take(self, request: web.Request, body: bytes, senders: Sequence[str], _: float) -> web.Response:
        """Store the webhook; answer its event's id, and whether it was stored before."""
        (name,) = senders
        webhook_id, payload = request.headers[ID], _json(body)
        text = await _sealed(self.codec, payload)
        span, traceparent = send_span(self.tracer, f"webhook:{name}:{webhook_id}", KIND)
        with nullcontext() if span is None else within(span):
            inserted = await self.call(
                lambda intake: intake.fire_trigger(name, webhook_id, text, traceparent), text
            )
            if span is not None:
                answered(span, inserted)
        if inserted.duplicate:
            self.metrics.duplicates += 1
        else:
            self.metrics.sent(KIND)
            self.metrics.altered += payload.altered
        _logger.debug("webhook stored", trigger=name, id=inserted.id, duplicate=inserted.duplicate)
        return web.json_response({"id": inserted.id, "duplicate": inserted.duplicate})


@dataclass(frozen=True, slots=True)
class AnswerUrl:
    """The URL of remote agents' answers: each ends the event that waits for it."""

    secrets: Secrets
    call: Turns
    codec: Codec
    refused: Callable[[web.Request, RequestRefused], None]
    path: str = "/v1/dispatch/{id}"
    media_types: Collection[str] = (JSON,)

    def plausible(self, request: web.Request) -> bool:
        return bool(self.secrets) and plausible(request.headers) == answer_id(request.match_info["id"])

    def senders(self, request: web.Request, body: bytes) -> Sequence[str]:
        """Return the agents whose key signed the body. Several may share one."""
        return _signers(request, body, self.secrets, self.secrets)

    async def take(self, request: web.Request, body: bytes, senders: Sequence[str], _: float) -> web.Response:
        """Settle the event with the answer, if it waits for one of the senders."""
        text, unknown = request.match_info["id"], RequestRefused(404, "no event waits for this answer")
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise unknown
        identity = int(text)
        result = await _sealed(self.codec, _json(body), Location(identity, RESULT))
        match await self.call(lambda intake: intake.answer_dispatch(identity, list(senders), result), result):
            case "done":
                return web.json_response({"id": identity})
            case "running":
                raise RequestRefused(
                    409, "the event does not wait for its answer yet: try again", headers={"Retry-After": "1"}
                )
            case _:
                raise unknown


def _signers(request: web.Request, body: bytes, known: Secrets, names: Iterable[str]) -> list[str]:
    return [name for name in names if verified(request.headers, body, keys_of(known, name)) is not None]


async def _sealed(codec: Codec, given: Json, at: Location | None = None) -> str:
    """Return JSON as it is stored. ``RequestRefused`` (503): its data key cannot be used."""
    if not codec.on:
        return given.text
    try:
        if at is not None:
            return await codec.seal(given.text, at)
        return json.dumps(await codec.seal_payload(given.value, part=True))
    except (errors.SurelaneError, SealedError) as error:
        _logger.warning(NotStored.NO_KEY.value, **errors.described(error))
        raise RequestRefused(503, NotStored.NO_KEY.value) from None


def _json(body: bytes) -> Json:
    try:
        return read_json(body.decode())
    except UnicodeDecodeError:
        raise RequestRefused(400, "not JSON") from None
    except NotJsonError as error:
        raise RequestRefused(400, str(error)) from None
