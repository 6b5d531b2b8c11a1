"""Follow what an agent says: server-sent events, from any place on, until the event ends.

The worker stores once a second, and a stream reads twice. A notification would cost each batch a commit that waits.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated, Any

from aiohttp import web
from pydantic import BeforeValidator, Field

from surelane.errors import DatabaseUnavailable
from surelane_operator.api.endpoint import UNKNOWN, CallRefused
from surelane_operator.api.models import EventPath, Strict, digits
from surelane_operator.api.routes import StreamEndpoint, server_sent
from surelane_operator.changes import Changes
from surelane_operator.console.access.viewer import EVENT_STREAM, viewer_of

MOST = 64
"""Streams at once. Each is a connection of 192 on the private port; the page, probes and requests need the others."""
EACH = 48
"""Streams at once of one viewer. The others are for everybody else."""
EVERY = 0.5
"""Seconds between two looks at the database."""
HEARTBEAT = 15.0
"""Seconds of silence after which a comment tells proxies and readers that the stream lives."""
SPELL = 300.0
"""Seconds of a stream. The reader then comes again, and passes the guard again."""
SLOWEST = 30.0
"""Seconds that a reader may take for a batch, or its connection is cut."""
HEADERS = {"Content-Type": EVENT_STREAM, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class StreamQuery(Strict):
    after: Annotated[int, Field(ge=0, le=2**31 - 1), BeforeValidator(digits)] = Field(
        0, description="go on after the batch with this id; the header `Last-Event-ID` counts instead"
    )


class StreamApi:
    """The endpoint that streams what agents say."""

    def __init__(self, changes: Changes, *, most: int = MOST, each: int = EACH, spell: float = SPELL) -> None:
        self._changes, self._most, self._each, self._spell = changes, most, each, spell
        self._open = Counter[str]()
        self._closed = asyncio.Event()

    def endpoints(self) -> list[StreamEndpoint]:
        return [StreamEndpoint("/v1/jobs/{id}/stream", self.stream_event, self._send, refusals=UNKNOWN)]

    def close(self) -> None:
        """End all streams. Readers come again."""
        self._closed.set()

    async def stream_event(self, path: EventPath, query: StreamQuery) -> StreamQuery | None:
        """Follow what an agent says, until its event ends. That you looked is kept.

        An event `said` has a text and the number of the model's response. Where it `begins`, forget what was said in
        that response and in later ones: it is told anew. The event `end` has the status, the reason and the result.
        """
        return query if await self._changes.look(path.id) else None

    async def _send(self, request: web.Request, query: StreamQuery) -> web.StreamResponse:
        name = viewer_of(request).name
        if self._open.total() >= self._most or self._open[name] >= self._each:
            open_now = f"{self._open.total()} streams are open, {self._open[name]} of them yours"
            raise CallRefused(503, f"{open_now}: try again later", {"Retry-After": "5"})
        self._open[name] += 1
        response = web.StreamResponse(headers=HEADERS)
        try:
            await response.prepare(request)
            async for each in self._events(int(request.match_info["id"]), query.after):
                async with asyncio.timeout(SLOWEST):
                    await response.write(each)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # the reader went away
        finally:
            self._open -= Counter([name])
        return response

    async def _events(self, identity: int, number: int) -> AsyncIterator[bytes]:
        clock = asyncio.get_running_loop().time
        ends, quiet_since = clock() + self._spell, clock()
        yield b"retry: 1000\n\n"
        while clock() < ends:
            ended, said = await self._read(identity, number)
            for each in said:
                number, quiet_since = each.pop("number"), clock()
                yield f"id: {number}\n".encode() + server_sent("said", each)
            if said:
                continue
            if ended is not None:
                yield server_sent("end", ended)
                return
            if clock() - quiet_since >= HEARTBEAT:
                quiet_since = clock()
                yield b": it goes on\n\n"
            if await self._closes():
                return

    async def _read(self, identity: int, number: int) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """Return how the event ended, and what was said after a number. While the database is away, neither."""
        try:
            ended, said = await self._changes.read_said(identity, number)
            if said or not ended:
                return None, said
            event = await self._changes.get(identity, texts=True)
        except DatabaseUnavailable:
            return None, []
        if event is None:
            return {"status": "unknown", "reason": "the event was removed", "result": None}, []
        if event["finished_at"] is None:  # it runs again
            return None, []
        return {name: event[name] for name in ("status", "reason", "result")}, []

    async def _closes(self) -> bool:
        try:
            async with asyncio.timeout(EVERY):
                return await self._closed.wait()
        except TimeoutError:
            return False
