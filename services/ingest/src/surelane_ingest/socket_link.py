"""Take the envelopes of one Socket Mode connection, and acknowledge each after its commit."""

import asyncio
from typing import assert_never

import aiohttp

from surelane_ingest.app import Bodies, Drain, Refused
from surelane_ingest.envelope import Subscriptions
from surelane_ingest.frames import Delivered, Disconnect, Hello, Unknown, acknowledgement, read_frame
from surelane_ingest.limits import Refusals
from surelane_ingest.links import Links
from surelane_ingest.taking import Taker
from surelane_service.logs import get_logger

LEAVES_WITHIN = 30.0
"""Seconds that a connection lives on after Slack said that it will end. Slack usually ends it earlier."""
CLOSES_WITHIN = 2.0
"""Seconds that the end of a connection may take."""
PATH = "socket mode"
"""Names the connections where logs name a request's path."""

_logger = get_logger(__name__)


class Link:
    """One connection, after its ``hello``."""

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        taker: Taker,
        subscriptions: Subscriptions,
        *,
        bodies: Bodies,
        links: Links,
        refusals: Refusals,
        drain: Drain,
    ) -> None:
        """Take over a connection.

        Args:
            socket: the connection.
            taker: stores the events.
            subscriptions: the event types to take.
            bodies: counts the memory of envelopes.
            links: counts envelopes by their outcome.
            refusals: logs refused envelopes.
            drain: says when to take no more.
        """
        self._socket = socket
        self._taker = taker
        self._subscriptions = subscriptions
        self._bodies = bodies
        self._links = links
        self._refusals = refusals
        self._taken: set[asyncio.Task[None]] = set()
        self._drain = drain
        self.reason = "it broke"
        """Why it ends."""
        self.leaving = asyncio.Event()
        """Set once it will end soon or has ended: another connection must replace it."""

    async def run(self) -> None:
        """Take envelopes until the connection ends."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:
                async for message in self._socket:
                    if message.type is aiohttp.WSMsgType.TEXT:
                        if self._frame(message.data):
                            limit.reschedule(loop.time() + LEAVES_WITHIN)
                    elif message.type is aiohttp.WSMsgType.ERROR:
                        break
        except TimeoutError:
            pass
        finally:
            if self._socket.close_code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG:
                self.reason = f"an envelope is larger than {self._bodies.largest} bytes"
            self.leaving.set()
            await self._close()

    async def drain(self, until: float) -> None:
        """Acknowledge what was taken, until then by the loop's clock, and end the connection."""
        if self._taken:
            await asyncio.wait(self._taken, timeout=max(until - asyncio.get_running_loop().time(), 0))
        for task in self._taken:
            task.cancel()
        self.reason = "stopping"
        await self._close()

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(CLOSES_WITHIN):
                await self._socket.close()
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass  # the session cuts it

    def _frame(self, text: str) -> bool:
        """Take a frame. Return whether Slack says that the connection will end."""
        if self._drain.started:
            return False  # Slack sends it again, to another connection
        frame = read_frame(text, self._subscriptions)
        match frame:
            case Delivered():
                self._begin(frame, len(text))
            case Disconnect(reason):
                self.reason = reason
                self.leaving.set()
                return True
            case Unknown(reason):
                self._links.envelopes["other", "ignored"] += 1
                self._refusals.note(PATH, 400, reason)
            case Hello():
                pass
            case _:
                assert_never(frame)
        return False

    def _begin(self, delivered: Delivered, size: int) -> None:
        if not self._bodies.take(0, size):
            self._links.envelopes[delivered.kind, "unavailable"] += 1
            self._refusals.note(PATH, 503, "too many requests at once")
            return
        self._links.pending += 1
        task = asyncio.create_task(self._take(delivered))
        self._taken.add(task)

        def done(_: asyncio.Task[None]) -> None:
            self._taken.discard(task)
            self._links.pending -= 1
            self._bodies.free(size)

        task.add_done_callback(done)

    async def _take(self, delivered: Delivered) -> None:
        try:
            outcome = await self._outcome(delivered)
        except Exception:
            _logger.exception("an envelope was not taken", type=delivered.kind)
            outcome = "failed"
        self._links.envelopes[delivered.kind, outcome] += 1

    async def _outcome(self, delivered: Delivered) -> str:
        """Store an envelope's event, and then acknowledge it. Without an acknowledgement Slack sends it again."""
        answer, outcome = None, "acknowledged"
        arrived = asyncio.get_running_loop().time()
        try:
            answer = await self._taker.take(delivered.content, arrived, delivered.retry)
        except Refused as refused:
            self._note(refused)
            if refused.status == 503:
                return "unavailable"
            outcome = "refused"  # never storable, so Slack need not try again
        try:
            async with asyncio.timeout(CLOSES_WITHIN):
                await self._socket.send_str(acknowledgement(delivered, answer))
        except (TimeoutError, aiohttp.ClientError, OSError):
            return "lost"
        return outcome

    def _note(self, refused: Refused) -> None:
        if refused.event:
            _logger.warning("envelope refused", reason=refused.error, **refused.event)
        else:
            self._refusals.note(PATH, refused.status, refused.error)
