"""Reading request bodies within bounds: type, encoding, size, time, and the memory they take together."""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aiohttp import ClientPayloadError, web

READ_WITHIN = 3.0
"""Seconds a body may take to arrive: after three Slack has given up on the answer anyway."""

SMALL = 64 * 1024
"""Bytes up to which a body counts as small. Slack's events are; a message takes a few thousand bytes."""

LARGE_SHARE = 0.75
"""The part of the memory that larger bodies may take together. The rest is kept for small ones."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not taken: an HTTP status and a short text for the answer and the log."""

    status: int
    error: str


CROWDED = Refusal(503, "too many requests at once")


class Bodies:
    """Reads bodies, and counts what those of all unanswered requests take.

    A body counts with the bytes that have arrived, not with those its headers announce: announcing costs a client
    nothing, so a few slow ones could otherwise take all the room.
    """

    def __init__(self, largest: int, memory: int) -> None:
        """``largest``: bytes of one body at most; ``memory``: bytes of all of them together at most."""
        self.largest = largest
        self._memory = memory
        self._large_memory = max(int(memory * LARGE_SHARE), largest)
        self.held_bytes = 0
        """What the bodies of unanswered requests take now."""
        self._large_bytes = 0

    def refusal(self, request: web.Request, media_type: str) -> Refusal | None:
        """Why a body is refused by the headers alone."""
        if request.content_type != media_type:
            return Refusal(415, f"the content type must be {media_type}")
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            return Refusal(415, "compressed bodies are not taken")
        if (request.content_length or 0) > self.largest:
            return self.too_large
        return None

    @property
    def too_large(self) -> Refusal:
        """The answer to a body that is larger than any may be."""
        return Refusal(413, f"the body is larger than {self.largest} bytes")

    def body(self) -> "Body":
        """One request's body, counted from its first byte to the end of the block."""
        return Body(self)

    def take(self, before: int, after: int) -> bool:
        """Counts a body that grew, unless there is no room for it."""
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
        """Counts a body no longer."""
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

    async def read(self, request: web.Request) -> bytes | Refusal:
        """The raw body, or why it cannot be had.

        Raises:
            ConnectionError: the client went away, so there is no request to answer.
        """
        try:
            async with asyncio.timeout(READ_WITHIN):
                return await self._read(request)
        except TimeoutError:
            return Refusal(408, f"the body took longer than {READ_WITHIN:.0f} seconds")
        except (web.RequestPayloadError, ClientPayloadError):
            return Refusal(400, "the body is cut short or garbled")

    async def _read(self, request: web.Request) -> bytes | Refusal:
        body = bytearray()
        while piece := await request.content.readany():
            size = len(body) + len(piece)
            if size > self._bodies.largest:
                return self._bodies.too_large
            if not self._bodies.take(self._size, size):
                return CROWDED
            self._size = size
            body += piece
        return bytes(body)
