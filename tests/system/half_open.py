"""A TCP proxy before PostgreSQL that can lose what it should forward, as a network that fails half-way does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit, urlunsplit


@dataclass
class Way:
    """A client's connection through the proxy."""

    back: asyncio.StreamWriter
    """Leads to the server."""
    listens: bool = False
    """Whether the client listens to notifications on it."""
    mute: bool = False
    """Whether the server's answers are lost."""
    deaf: bool = False
    """Whether the client's requests are lost, and its end."""


class Proxy:
    """Forwards connections to a server. On demand it loses what it should forward, and the connections stay open."""

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        self._user = parts.netloc.rpartition("@")[0]
        self._name = parts.path
        self._ways: list[Way] = []
        self._dark = False
        self._left: dict[str, int] = {}
        self.port = 0
        self.lead_to(uri)

    def lead_to(self, uri: str) -> None:
        """Forward new connections to the server of this URI, and end the open ones."""
        parts = urlsplit(uri)
        directory = parse_qs(parts.query).get("host", [""])[0]
        self._socket = f"{directory}/.s.PGSQL.{parts.port or 5432}" if directory else None
        self._server = parts.hostname, parts.port
        self.cut()

    def cut(self) -> None:
        """End the open connections."""
        for way in self._ways:
            way.back.close()

    @property
    def uri(self) -> str:
        """The database's URI through the proxy."""
        return urlunsplit(
            ("postgresql", f"{self._user}@127.0.0.1:{self.port}", self._name, "sslmode=disable", "")
        )

    def mute(self) -> None:
        """Lose all further answers on the connections that listen now."""
        for way in self._ways:
            way.mute = way.mute or way.listens

    def swallow(self) -> None:
        """Lose everything in both directions, on new connections too, until :meth:`restore`."""
        self._dark = True
        for way in self._ways:
            way.mute = way.deaf = True

    def restore(self) -> None:
        """Forward new connections again. What was swallowed stays half-open."""
        self._dark = False

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one client's connection in both directions."""
        if self._dark:
            while await reader.read(65536):
                pass
            writer.close()
            return
        if self._socket:
            there, back = await asyncio.open_unix_connection(self._socket)
        else:
            there, back = await asyncio.open_connection(*self._server)
        way = Way(back)
        self._ways.append(way)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests(way, reader, back))
                group.create_task(self._answers(way, there, writer))
        except* (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._ways.remove(way)
            for each in (back, writer):
                each.close()

    async def _requests(self, way: Way, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if way.deaf:
                    continue
                way.listens = way.listens or b"LISTEN" in data
                await self._deliver("up", data, back)
        if way.deaf:
            await asyncio.Event().wait()  # until the server ends its connection
        raise ConnectionResetError

    async def _answers(self, way: Way, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await there.read(65536):
            if not way.mute:
                await self._deliver("down", data, writer)
        raise ConnectionResetError

    def cut_after(self, way: str, size: int) -> None:
        """End the connection once so many bytes went ``up`` to the server, or ``down`` to the client."""
        self._left = {way: size}

    def mend(self) -> None:
        self._left = {}

    async def _deliver(self, way: str, data: bytes, to: asyncio.StreamWriter) -> None:
        left = self._left.get(way, len(data))
        to.write(data[:left])
        await to.drain()
        if len(data) > left:
            raise ConnectionResetError
        if way in self._left:
            self._left[way] -= len(data)


@asynccontextmanager
async def half_open(uri: str, port: int = 0) -> AsyncIterator[Proxy]:
    """Run a proxy before the server of a database for the length of the block, on any free port or this one."""
    proxy = Proxy(uri)
    server = await asyncio.start_server(proxy.forward, "127.0.0.1", port)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
