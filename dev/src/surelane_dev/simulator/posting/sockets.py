"""Send envelopes over Socket Mode: tickets, connections, acknowledgements, and disconnects on demand."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count
from secrets import token_hex
from typing import Literal
from urllib.parse import parse_qsl
from uuid import uuid4

import aiohttp
from aiohttp import web

from surelane_dev.simulator.posting.delivery import Delivery, DeliveryAttempt
from surelane_dev.simulator.workspace.model import JSON

MOST = 10
"""Connections of one app."""
TICKET_LIVES = 30.0
"""Seconds for which an address may be connected to."""
LEAVES_WITHIN = 1.0
"""Seconds between a warning and the end of the connection."""
ANSWERED = frozenset({"view_submission", "block_suggestion"})
"""The interactions whose acknowledgement may carry an answer."""

Reason = Literal["warning", "refresh_requested", "link_disabled"]


class AppConnections:
    """The connections of the app. Each envelope goes to one of them."""

    def __init__(self, timeout: timedelta = timedelta(seconds=3)) -> None:
        """``timeout``: how long an acknowledgement may take."""
        self.used = False
        """Whether Socket Mode is on: from the first address that was asked for."""
        self.changed: Callable[[], None] = lambda: None
        """Called when connections come or go."""
        self._timeout = timeout.total_seconds()
        self._tickets: dict[str, float] = {}
        self._open: list[web.WebSocketResponse] = []
        self._leaving: list[web.WebSocketResponse] = []
        self._transports: dict[web.WebSocketResponse, asyncio.Transport] = {}
        self._turn = count()
        self._connected = asyncio.Event()
        self.sent: dict[str, tuple[web.WebSocketResponse, asyncio.Future[JSON | None]]] = {}
        """The envelopes that are not acknowledged, by their ids."""
        self._disconnects: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        """The number of connections, those that will end soon included."""
        return len(self._open) + len(self._leaving)

    def json(self) -> JSON:
        """Return whether Socket Mode is on, and the number of connections."""
        return {"used": self.used, "connections": self.connections}

    def ticket(self) -> str:
        """Return a new ticket, which opens one connection."""
        self.used = True
        ticket = token_hex(16)
        self._tickets[ticket] = time.monotonic() + TICKET_LIVES
        return ticket

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve one connection of the app."""
        if self._tickets.pop(request.query.get("ticket", ""), 0.0) < time.monotonic():
            return web.json_response({"ok": False, "error": "invalid_ticket"}, status=403)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.connections >= MOST:
            await socket.send_json({"type": "disconnect", "reason": "too_many_websockets", "debug_info": {}})
            await socket.close()
            return socket
        self._open.append(socket)
        self.changed()
        if request.transport is not None:
            self._transports[socket] = request.transport
        app = {"app_id": request.query.get("app_id", "")}
        try:
            hello = {"type": "hello", "connection_info": app, "num_connections": self.connections}
            await socket.send_json({**hello, "debug_info": {}})
            self._connected.set()
            async for message in socket:
                self._acknowledged(socket, message)
        finally:
            self._forget(socket)
            self._transports.pop(socket, None)
        return socket

    async def __call__(
        self, delivery: Delivery, retry_num: int = 0, retry_reason: str | None = None
    ) -> DeliveryAttempt:
        """Send an envelope to one connection, and wait for its acknowledgement. ``retry_num``: 0 for the first one."""
        at, started = time.time(), time.monotonic()
        answer, problem = b"", None
        try:
            async with asyncio.timeout(self._timeout):
                payload = await self._send(delivery, retry_num, retry_reason)
            answer = b"" if payload is None else json.dumps(payload).encode()
        except TimeoutError:
            problem = "http_timeout" if self._open else "connection_failed"
        except (ConnectionError, aiohttp.ClientError):
            problem = "connection_failed"
        seconds, status = time.monotonic() - started, 200 if problem is None else None
        return DeliveryAttempt(at, seconds, retry_num, retry_reason, status, problem, answer=answer)

    def disconnect(self, reason: Reason | None, every: timedelta | None = None) -> int:
        """Disconnect the app now, and again after each ``every``. Return how many connections end.

        ``reason``: what the app is told, a second before the end; ``None``: connections break without a word.
        """
        if self._disconnects is not None:
            self._disconnects.cancel()
        ended = self.connections
        self._disconnects = asyncio.create_task(self._disconnect(reason, every))
        return ended

    async def close(self) -> None:
        """End all connections; may be called again."""
        if self._disconnects is not None:
            self._disconnects.cancel()
        await asyncio.gather(*(each.close() for each in (*self._open, *self._leaving)))

    async def _send(self, delivery: Delivery, retry_num: int, retry_reason: str | None) -> JSON | None:
        while not self._open:
            self._connected.clear()
            await self._connected.wait()
        socket = self._open[next(self._turn) % len(self._open)]
        identity = str(uuid4())
        acknowledged: asyncio.Future[JSON | None] = asyncio.get_running_loop().create_future()
        self.sent[identity] = socket, acknowledged
        try:
            envelope = {"envelope_id": identity, **_envelope(delivery)}
            if envelope["type"] == "events_api":
                envelope |= {"retry_attempt": retry_num, "retry_reason": retry_reason or ""}
            await socket.send_json(envelope)
            return await acknowledged
        finally:
            del self.sent[identity]

    def _acknowledged(self, socket: web.WebSocketResponse, message: aiohttp.WSMessage) -> None:
        with suppress(ValueError, TypeError, AttributeError):
            frame = json.loads(message.data)
            sent_to, acknowledged = self.sent.get(frame.get("envelope_id"), (None, None))
            if sent_to is socket and acknowledged is not None and not acknowledged.done():
                acknowledged.set_result(frame.get("payload"))

    def _forget(self, socket: web.WebSocketResponse) -> None:
        for sockets in (self._open, self._leaving):
            if socket in sockets:
                sockets.remove(socket)
                self.changed()
        for sent_to, acknowledged in self.sent.values():
            if sent_to is socket and not acknowledged.done():
                acknowledged.set_exception(ConnectionResetError())

    async def _disconnect(self, reason: Reason | None, every: timedelta | None) -> None:
        while True:
            leaving = [*self._open]
            if reason is None:
                for socket in leaving:
                    self._cut(socket)
            else:
                await self._warn(leaving, reason)
            if every is None:
                return
            await asyncio.sleep(every.total_seconds())

    async def _warn(self, leaving: list[web.WebSocketResponse], reason: Reason) -> None:
        for socket in leaving:
            if socket in self._open:
                self._open.remove(socket)
                self._leaving.append(socket)
            with suppress(ConnectionError):
                await socket.send_json({"type": "disconnect", "reason": reason, "debug_info": {}})
        if leaving:
            await asyncio.sleep(LEAVES_WITHIN)
            await asyncio.gather(*(socket.close() for socket in leaving))

    def _cut(self, socket: web.WebSocketResponse) -> None:
        self._forget(socket)
        if socket in self._transports:
            self._transports[socket].abort()


def _envelope(delivery: Delivery) -> JSON:
    """Return an envelope without its id: what HTTP has in a body is its payload."""
    if delivery.content_type == "application/json":
        payload = json.loads(delivery.body)
        return {"type": "events_api", "payload": payload, "accepts_response_payload": False}
    fields = dict(parse_qsl(delivery.body.decode(), keep_blank_values=True))
    if "payload" in fields:
        payload = json.loads(fields["payload"])
        takes = payload.get("type") in ANSWERED
        return {"type": "interactive", "payload": payload, "accepts_response_payload": takes}
    return {"type": "slash_commands", "payload": fields, "accepts_response_payload": True}
