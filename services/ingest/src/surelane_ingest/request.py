"""Read a request: bound its body, verify Slack's signature, and refuse it by raising :class:`Refused`."""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from aiohttp import ClientPayloadError, web
from slack_sdk.signature import Clock, SignatureVerifier

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"

TIMESTAMP, SIGNATURE = "X-Slack-Request-Timestamp", "X-Slack-Signature"
TOLERANCE = 300
"""Seconds by which a request's timestamp may differ from the clock: the bound in Slack's documentation."""

READ_WITHIN = 3.0
"""Seconds a body may take to arrive. Slack gives up on the answer after three."""

SMALL = 64 * 1024
"""Largest small body, in bytes. A message of Slack's has a few thousand bytes."""

LARGE_SHARE = 0.75
"""Part of the memory that bodies over :data:`SMALL` may take together. The rest is kept for small ones."""

_HEXADECIMAL = frozenset("0123456789abcdef")


class Headers(Protocol):
    """The headers of a request, of which one name may occur several times."""

    def getall(self, key: str, default: Sequence[str], /) -> Sequence[str]:
        """Return all values under a name, or ``default``."""


class Refused(Exception):  # noqa: N818 - it is an answer, not a failure
    """A request that is answered with an error.

    Attributes:
        status: the HTTP status.
        error: the reason, for the answer and the log. It quotes nothing that the client sent.
        headers: further headers of the answer.
        event: the log fields that name the event of a verified request; empty where it has none.
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


def unsigned() -> Refused:
    """Make the refusal of a request that no known secret signed."""
    return Refused(401, "the signature is missing, wrong or stale")


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


class Bodies:
    """Read bodies within their bounds, and count the memory that unanswered requests hold.

    A body counts with the bytes that have arrived. Its announced length costs a client nothing, so counting that
    would let a few slow clients take all the memory.

    Attributes:
        largest: the largest body, in bytes.
        held_bytes: bytes that the bodies of unanswered requests take now.
    """

    def __init__(self, largest: int, memory: int, read_within: float = READ_WITHIN) -> None:
        """Set the bounds.

        Args:
            largest: the largest body, in bytes.
            memory: the most bytes that all bodies may take together.
            read_within: seconds a body may take to arrive.
        """
        self.largest = largest
        self.read_within = read_within
        self.held_bytes = 0
        self._memory = memory
        self._large_memory = max(int(memory * LARGE_SHARE), largest)
        self._large_bytes = 0

    def check(self, request: web.Request, media_type: str) -> None:
        """Check the headers that describe the body.

        Raises:
            Refused: another content type (415), a compressed body (415), or one that is too large (413).
        """
        if request.content_type != media_type:
            raise Refused(415, f"the content type must be {media_type}")
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Refused(415, "compressed bodies are not taken")
        if (request.content_length or 0) > self.largest:
            raise self.too_large()

    def too_large(self) -> Refused:
        """Make the refusal of a body that is larger than allowed."""
        return Refused(413, f"the body is larger than {self.largest} bytes")

    def body(self) -> "Body":
        """Return one request's body, which counts until the end of its block."""
        return Body(self)

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
        """Stop counting a body of ``size`` bytes."""
        self.held_bytes -= size
        if size > SMALL:
            self._large_bytes -= size


class Body:
    """One request's body. Use it as a context manager: its bytes count until the end of the block."""

    __slots__ = ("_bodies", "_size")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._bodies.free(self._size)

    async def read(self, request: web.Request) -> bytes:
        """Read the raw body.

        Raises:
            Refused: it is cut short (400), too slow (408) or too large (413), or no memory is left (503).
            ConnectionError: the client went away, so no request is left to answer.
        """
        try:
            async with asyncio.timeout(self._bodies.read_within):
                return await self._read(request)
        except TimeoutError:
            raise Refused(408, f"the body took longer than {self._bodies.read_within:.0f} seconds") from None
        except (web.RequestPayloadError, ClientPayloadError):
            raise Refused(400, "the body is cut short or garbled") from None

    async def _read(self, request: web.Request) -> bytes:
        body = bytearray()
        while piece := await request.content.readany():
            size = len(body) + len(piece)
            if size > self._bodies.largest:
                raise self._bodies.too_large()
            if not self._bodies.take(self._size, size):
                raise Refused(503, "too many requests at once")
            self._size = size
            body += piece
        return bytes(body)
