"""A TCP proxy before PostgreSQL that can lose what the server answers, as a network that fails half-way does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit, urlunsplit


@dataclass
class Way:
    """A client's connection through the proxy."""

    listens: bool = False
    """Whether the client listens to notifications on it."""
    mute: bool = False
    """Whether the server's answers are lost."""


class Proxy:
    """Forwards connections to a server. On demand it loses the answers, and the connections stay open."""

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        directory = parse_qs(parts.query).get("host", [""])[0]
        self._socket = f"{directory}/.s.PGSQL.{parts.port or 5432}" if directory else None
        self._server = parts.hostname, parts.port
        self._user = parts.netloc.rpartition("@")[0]
        self._name = parts.path
        self._ways: list[Way] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def uri(self) -> str:
        """The database's URI through the proxy."""
        return urlunsplit(
            ("postgresql", f"{self._user}@127.0.0.1:{self.port}", self._name, "sslmode=disable", "")
        )

    def mute(self, *, listening: bool = False) -> None:
        """Lose all further answers on the connections that are open now, or on those that listen."""
        for way in self._ways:
            way.mute = way.mute or way.listens or not listening

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one client's connection in both directions."""
        if self._socket:
            there, back = await asyncio.open_unix_connection(self._socket)
        else:
            there, back = await asyncio.open_connection(*self._server)
        way = Way()
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

    @staticmethod
    async def _requests(way: Way, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            way.listens = way.listens or b"LISTEN" in data
            back.write(data)
            await back.drain()
        raise ConnectionResetError

    @staticmethod
    async def _answers(way: Way, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await there.read(65536):
            if not way.mute:
                writer.write(data)
                await writer.drain()
        raise ConnectionResetError


@asynccontextmanager
async def half_open(uri: str) -> AsyncIterator[Proxy]:
    """Run a proxy before the server of a database for the length of the block."""
    proxy = Proxy(uri)
    server = await asyncio.start_server(proxy.forward, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
