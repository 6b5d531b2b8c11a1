"""Slack's URLs: verify Slack's signature, read the body, and return a handler's answer."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from aiohttp import web
from slack_sdk.signature import Clock, SignatureVerifier

from surelane_ingest.app import FORM, JSON
from surelane_ingest.envelope import Envelope, Subscriptions, read_event, read_form
from surelane_ingest.taking import Taker

SLACK = ("slack",)
SWITCHED_OFF = "SLACK_SIGNING_SECRET is not set: requests of Slack are not taken here"
PATHS = ("/slack/events", "/slack/commands", "/slack/interactions")

RETRY = "X-Slack-Retry-Num"
TIMESTAMP, SIGNATURE = "X-Slack-Request-Timestamp", "X-Slack-Signature"
TOLERANCE = 300
"""Seconds by which a request's timestamp may differ from the clock: the bound in Slack's documentation."""

_TIMESTAMP = re.compile(r"\d{1,12}", re.ASCII)
_SIGNATURE = re.compile(r"v0=[0-9a-f]{64}")


class Headers(Protocol):
    """The headers of a request; a name may occur several times."""

    def getall(self, key: str, default: Sequence[str], /) -> Sequence[str]: ...


class Signatures:
    """Verify Slack's signature under several secrets, by the rule in its "Verifying requests from Slack"."""

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
        if not (_TIMESTAMP.fullmatch(timestamp) and _SIGNATURE.fullmatch(signature)):
            return False
        return abs(self._clock.now() - int(timestamp)) <= TOLERANCE

    def valid(self, body: bytes, headers: Headers) -> bool:
        """Return whether one of the secrets signed the raw ``body`` within :data:`TOLERANCE` of now."""
        found = _signature(headers)
        try:
            return found is not None and any(each.is_valid(body, *found) for each in self._verifiers)
        except (ValueError, TypeError, OverflowError):
            # Hostile input: a timestamp that is no number or too large, a signature or a body that cannot be encoded.
            return False


def _signature(headers: Headers) -> tuple[str, str] | None:
    timestamps, signatures = headers.getall(TIMESTAMP, ()), headers.getall(SIGNATURE, ())
    return (timestamps[0], signatures[0]) if len(timestamps) == len(signatures) == 1 else None


@dataclass(frozen=True, slots=True)
class SlackUrl:
    """One of Slack's URLs. ``read``: reads its bodies, by their content type."""

    path: str
    read: Mapping[str, Callable[[bytes], Envelope]]
    signatures: Signatures
    taker: Taker
    refused: None = None

    @property
    def media_types(self) -> Collection[str]:
        return self.read

    def plausible(self, request: web.Request) -> bool:
        return self.signatures.plausible(request.headers)

    def senders(self, request: web.Request, body: bytes) -> Sequence[str]:
        return SLACK if self.signatures.valid(body, request.headers) else ()

    async def take(self, request: web.Request, body: bytes, _: Sequence[str], arrived: float) -> web.Response:
        """Store an event, or answer what else Slack sends. It raises what :meth:`Taker.take` does.

        A handler's answer is returned as Slack takes it: an object as JSON, a text as plain text.
        """
        envelope = self.read[request.content_type](body)
        answer = await self.taker.take(envelope, arrived, request.headers.get(RETRY))
        if answer is None or answer == "null":  # the handler has nothing to say
            return web.Response()
        if answer.startswith('"'):
            return web.Response(text=json.loads(answer))
        return web.Response(text=answer, content_type=JSON)


def slack_urls(signatures: Signatures, subscriptions: Subscriptions, taker: Taker) -> list[SlackUrl]:
    """Return the URL that takes all of Slack's requests, and the URLs of commands and interactions only."""
    read: Callable[[bytes], Envelope] = partial(read_event, subscriptions=subscriptions)
    forms: dict[str, Callable[[bytes], Envelope]] = {FORM: read_form}
    readers = {"/slack/events": {JSON: read, **forms}, "/slack/commands": forms, "/slack/interactions": forms}
    return [SlackUrl(path, readers[path], signatures, taker) for path in PATHS]
