"""Reading request bodies within bounds: type, encoding, size, time, and the memory they take together."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import ClientPayloadError, web

READ_WITHIN = 3.0
"""Seconds a body may take to arrive: after three Slack has given up on the answer anyway."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not taken: an HTTP status and a short text for the answer and the log."""

    status: int
    error: str


class Bodies:
    """Reads bodies, and counts what those of all unanswered requests take."""

    def __init__(self, largest: int, memory: int) -> None:
        """``largest``: bytes of one body at most; ``memory``: bytes of all of them together at most."""
        self._largest = largest
        self._memory = memory
        self.held_bytes = 0
        """What the bodies of unanswered requests take now."""

    def size(self, request: web.Request) -> int:
        """Bytes to set aside: what the client announces, or the most it may send where it does not."""
        announced = request.content_length
        return self._largest if announced is None else announced

    def refusal(self, request: web.Request, size: int, media_type: str) -> Refusal | None:
        """What can be told from the headers alone."""
        if request.content_type != media_type:
            return Refusal(415, f"the content type must be {media_type}")
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            return Refusal(415, "compressed bodies are not taken")
        if size > self._largest:
            return Refusal(413, f"the body is larger than {self._largest} bytes")
        if self.held_bytes + size > self._memory:
            return Refusal(503, "too many requests at once")
        return None

    @contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Counts a body until its request has been answered."""
        self.held_bytes += size
        try:
            yield
        finally:
            self.held_bytes -= size

    async def read(self, request: web.Request) -> bytes | Refusal:
        """The raw body, or why it cannot be had.

        Raises:
            ConnectionError: the client went away; nobody is there to be answered.
        """
        try:
            async with asyncio.timeout(READ_WITHIN):
                return await request.read()
        except TimeoutError:
            return Refusal(408, f"the body took longer than {READ_WITHIN:.0f} seconds")
        except web.HTTPRequestEntityTooLarge:
            return Refusal(413, f"the body is larger than {self._largest} bytes")
        except (web.RequestPayloadError, ClientPayloadError):
            return Refusal(400, "the body is cut short or garbled")
