"""Stand in for Slack's side of Socket Mode, frame by frame, so that a test chooses every byte."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from aiohttp import WSMsgType, web

from surelane_service.probes import serving

TOKEN = "xapp-1-A1-2-0a1b2c"


class Wire:
    """One connection of the app."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self.socket = socket
        self.acknowledged: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.ended = asyncio.Event()

    async def send(self, payload: object, kind: str | None = "events_api", **fields: Any) -> str:
        identity = str(uuid4())
        await self.socket.send_json({"envelope_id": identity, "type": kind, "payload": payload, **fields})
        return identity

    async def take(self, payload: object, kind: str | None = "events_api", **fields: Any) -> dict[str, Any]:
        """Send an envelope; return its acknowledgement without its id."""
        sent = await self.send(payload, kind, **fields)
        told = await self.acknowledgement()
        assert told.pop("envelope_id") == sent
        return told

    async def acknowledgement(self) -> dict[str, Any]:
        return await asyncio.wait_for(self.acknowledged.get(), 60)

    async def disconnect(self, reason: str) -> None:
        """Say that the connection will end."""
        await self.socket.send_json({"type": "disconnect", "reason": reason})


class SocketSlack:
    """Answers ``apps.connections.open``, and keeps the connections in the order in which they came."""

    def __init__(self) -> None:
        self.url = ""
        self.opened: asyncio.Queue[Wire] = asyncio.Queue()
        self.open: list[Wire] = []
        self.calls = 0
        self.answers: list[tuple[int, dict[str, Any], dict[str, str]]] = []
        """Answers to the next calls, before those that succeed."""
        self.others = 0
        """Connections of the app that other replicas have."""
        self.answers_pings = True
        self.first: dict[str, Any] | None = None
        """The first frame of each connection; ``None``: hello."""

    async def wire(self) -> Wire:
        """Return the next connection that the app opens."""
        return await asyncio.wait_for(self.opened.get(), 60)

    async def _open(self, request: web.Request) -> web.Response:
        self.calls += 1
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        if self.answers:
            status, body, headers = self.answers.pop(0)
            return web.json_response(body, status=status, headers=headers)
        return web.json_response({"ok": True, "url": self.url.replace("http", "ws") + "/link"})

    async def _link(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=self.answers_pings)
        await socket.prepare(request)
        wire = Wire(socket)
        self.open.append(wire)
        count = len(self.open) + self.others
        await socket.send_json(self.first or {"type": "hello", "num_connections": count})
        self.opened.put_nowait(wire)
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    wire.acknowledged.put_nowait(json.loads(message.data))
        finally:
            self.open.remove(wire)
            wire.ended.set()
        return socket

    @asynccontextmanager
    async def served(self) -> AsyncIterator["SocketSlack"]:
        app = web.Application()
        app.add_routes([web.post("/api/apps.connections.open", self._open), web.get("/link", self._link)])
        async with serving(app, 0, setting="", host="127.0.0.1") as port:
            self.url = f"http://127.0.0.1:{port}"
            yield self
            for wire in [*self.open]:
                await wire.socket.close()
