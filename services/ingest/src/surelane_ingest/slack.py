"""Slack's URLs: verify Slack's signature, decide what a payload is, and store the events."""

import json
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from aiohttp import web
from slack_sdk.signature import Clock, SignatureVerifier

from surelane.trace_context import traceparent_of
from surelane_ingest.answers import Answers, Request
from surelane_ingest.app import FORM, JSON, Refused
from surelane_ingest.envelope import (
    Challenge,
    Envelope,
    Ignore,
    Malformed,
    RateLimited,
    Removed,
    Subscriptions,
    Take,
    read_event,
    read_form,
)
from surelane_ingest.tracing import RETRY, answered, delivered
from surelane_ingest.writer import Answer, NotStored, Writer
from surelane_service.logs import Logger, get_logger
from surelane_service.telemetry.setup import send_span
from surelane_service.telemetry.tracer import Tracer

SLACK = ("slack",)
NO_RETRY = {"x-slack-no-retry": "1"}
"""Stops Slack's retries. Slack reads it on answers other than 200 only (Slack's documentation, Events API)."""

TIMESTAMP, SIGNATURE = "X-Slack-Request-Timestamp", "X-Slack-Signature"
TOLERANCE = 300
"""Seconds by which a request's timestamp may differ from the clock: the bound in Slack's documentation."""

EMPTY = "null"
"""The answer of a handler that has nothing to say."""

_HEXADECIMAL = frozenset("0123456789abcdef")


Removals = Callable[[Removed], Awaitable[None]]


class Headers(Protocol):
    """The headers of a request, of which one name may occur several times."""

    def getall(self, key: str, default: Sequence[str], /) -> Sequence[str]:
        """Return all values under a name, or ``default``."""


class Signatures:
    """Verify Slack's signature under several secrets: the old and the new one during a rotation.

    The rule is in Slack's documentation, "Verifying requests from Slack".
    """

    def __init__(self, secrets: Sequence[str], clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._verifiers = [SignatureVerifier(secret, self._clock) for secret in secrets]

    def plausible(self, headers: Headers) -> bool:
        """Return whether a signed request can have these headers. Call it before the body is read.

        A request with two timestamps or two signatures is refused: proxies could each read another one.
        """
        found = _signature(headers)
        if found is None:
            return False
        timestamp, signature = found
        return (
            len(timestamp) <= 12
            and timestamp.isascii()
            and timestamp.isdigit()
            and abs(self._clock.now() - int(timestamp)) <= TOLERANCE
            and len(signature) == 67
            and signature.startswith("v0=")
            and _HEXADECIMAL.issuperset(signature[3:])
        )

    def valid(self, body: bytes, headers: Headers) -> bool:
        """Return whether one of the secrets signed the raw ``body`` within :data:`TOLERANCE` of now."""
        found = _signature(headers)
        return found is not None and any(_valid(verifier, body, *found) for verifier in self._verifiers)


def _signature(headers: Headers) -> tuple[str, str] | None:
    timestamps, signatures = headers.getall(TIMESTAMP, ()), headers.getall(SIGNATURE, ())
    return (timestamps[0], signatures[0]) if len(timestamps) == len(signatures) == 1 else None


def _valid(verifier: SignatureVerifier, body: bytes, timestamp: str, signature: str) -> bool:
    try:
        return verifier.is_valid(body, timestamp, signature)
    except (ValueError, TypeError, OverflowError):
        # Hostile input: a timestamp that is no number or too large, a signature outside ASCII, a body outside UTF-8.
        return False


@dataclass(frozen=True, slots=True)
class SlackUrl:
    """One of Slack's URLs.

    Attributes:
        path: its route.
        read: reads its bodies, by their content type.
        signatures: verifies them.
        writer: stores its events.
        answers: waits for the answers to commands and interactions.
        tracer: makes spans; ``None``: tracing is off.
        removals: deletes the tokens of a removed installation; ``None``: installs are off.
        log: a bound logger. An unbound one costs more per silenced line than the rest of the answer.
    """

    path: str
    read: Mapping[str, Callable[[bytes], Envelope]]
    signatures: Signatures
    writer: Writer
    answers: Answers
    tracer: Tracer | None
    log: Logger
    removals: Removals | None = None

    @property
    def media_types(self) -> Collection[str]:
        """The content types that Slack sends there."""
        return self.read

    def plausible(self, request: web.Request) -> bool:
        """Return whether the headers can be those of a request that Slack signed."""
        return self.signatures.plausible(request.headers)

    def senders(self, request: web.Request, body: bytes) -> Sequence[str]:
        """Return Slack, if it signed the body."""
        return SLACK if self.signatures.valid(body, request.headers) else ()

    async def take(self, request: web.Request, body: bytes, _: Sequence[str], arrived: float) -> web.Response:
        """Store an event, or answer what else Slack sends.

        Raises:
            Refused: the body is malformed (400), or the event is not known to be stored (400 or 503).
        """
        metrics = self.writer.metrics
        envelope = self.read[request.content_type](body)
        if isinstance(envelope, Removed):
            if self.removals is not None:
                await self.removals(envelope)
            envelope = envelope.then
        match envelope:
            case Take(waits=True) if (waiting := self.answers.request(arrived)) is not None:
                with waiting:
                    await self._store(request, envelope, waiting)
                    return _response(await waiting.answer())
            case Take():
                await self._store(request, envelope)
            case Challenge(challenge):
                self.log.info("url verified")
                return web.json_response({"challenge": challenge})
            case Ignore(reason):
                metrics.ignored[reason] += 1
                self.log.debug("request ignored", reason=reason)
            case RateLimited(team, minute):
                metrics.rate_limited += 1
                self.log.warning("slack drops events of a workspace with too many", team=team, minute=minute)
            case Malformed(reason):
                raise Refused(400, reason, headers=NO_RETRY)
            case _:
                assert_never(envelope)
        return web.Response()

    async def _store(self, request: web.Request, event: Take, waiting: Request | None = None) -> None:
        metrics = self.writer.metrics
        answer = await self._insert(request, event, waiting)
        if isinstance(answer, NotStored):
            metrics.sent(event.kind, answer.name.lower())
            named = {"event_id": event.key, "kind": event.kind}
            if answer is NotStored.UNSTORABLE:
                raise Refused(400, answer.value, headers=NO_RETRY, event=named)
            raise Refused(503, answer.value, event=named)
        if answer.duplicate:
            metrics.duplicates += 1
        else:
            metrics.sent(event.kind)
        if event.altered:
            metrics.altered += 1
            self.log.warning("event stored with replaced characters", event_id=event.key, kind=event.kind)
        self.log.debug(
            "event stored", event_id=event.key, kind=event.kind, id=answer.id, duplicate=answer.duplicate
        )

    async def _insert(self, request: web.Request, event: Take, waiting: Request | None) -> Answer:
        if self.tracer is None:
            return await self.writer.store(event.body, event.key, request=waiting)
        # The trace's id follows from the key, so that a retry continues the trace. Without a key it is random.
        with send_span(self.tracer, event.key or secrets.token_hex(16), event.kind) as span:
            delivered(span, request.headers.get(RETRY))
            answer = await self.writer.store(event.body, event.key, traceparent_of(span), waiting)
            answered(span, answer)
            return answer


def _response(answer: str | None) -> web.Response:
    """Return a handler's answer, JSON text, as Slack takes it: an object as JSON, a text as plain text."""
    if answer is None or answer == EMPTY:
        return web.Response()
    if answer.startswith('"'):
        return web.Response(text=json.loads(answer))
    return web.Response(text=answer, content_type=JSON)


def slack_urls(
    signatures: Signatures,
    subscriptions: Subscriptions,
    writer: Writer,
    answers: Answers,
    tracer: Tracer | None,
    removals: Removals | None = None,
) -> list[SlackUrl]:
    """Return the URL that takes all of Slack's requests, and those that take commands and interactions only."""

    def read(body: bytes) -> Envelope:
        return read_event(body, subscriptions)

    # Bound here, not on import: binding fixes the configuration of the logs, which starts after the imports.
    log: Logger = get_logger(__name__).bind()
    forms = {FORM: read_form}
    paths = {
        "/slack/events": {JSON: read, **forms},
        "/slack/commands": forms,
        "/slack/interactions": forms,
    }
    return [
        SlackUrl(path, readers, signatures, writer, answers, tracer, log, removals)
        for path, readers in paths.items()
    ]
