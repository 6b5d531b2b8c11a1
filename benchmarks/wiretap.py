"""Run a proxy before PostgreSQL that counts the statements of a client exactly."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, urlsplit

CHUNK = 2**16


class Wiretap:
    """A counter of the statements on all connections through it."""

    def __init__(self, uri: str) -> None:
        self._upstream = urlsplit(uri)
        self.statements: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection's bytes on in both directions."""
        upstream_reader, upstream_writer = await self._connect()
        back = asyncio.create_task(_copy(upstream_reader, writer))
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._listen(reader, upstream_writer)
        finally:
            upstream_writer.close()
            back.cancel()
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        port = self._upstream.port or 5432
        if directory := parse_qs(self._upstream.query).get("host"):
            return await asyncio.open_unix_connection(f"{directory[0]}/.s.PGSQL.{port}")
        return await asyncio.open_connection(self._upstream.hostname, port)

    async def _listen(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
        """Read the client's messages: a start-up message, then messages with a type, a length and a body."""
        size = await reader.readexactly(4)
        upstream.write(size + await reader.readexactly(int.from_bytes(size) - 4))
        prepared: dict[bytes, str] = {}
        bound = ""
        while True:
            head = await reader.readexactly(5)
            body = await reader.readexactly(int.from_bytes(head[1:]) - 4)
            upstream.write(head + body)
            first, _, rest = body.partition(b"\0")
            match head[:1]:
                case b"Q":
                    self.statements[first.decode()] += 1
                case b"P":
                    prepared[first] = rest.partition(b"\0")[0].decode()
                case b"B":
                    bound = prepared.get(rest.partition(b"\0")[0], "")
                case b"E":
                    self.statements[bound] += 1


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def tapped(uri: str) -> AsyncIterator[tuple[str, Wiretap]]:
    """Yield a URI that leads to the same database through a :class:`Wiretap`."""
    tap = Wiretap(uri)
    parts = urlsplit(uri)
    server = await asyncio.start_server(tap.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    user = parts.username or ""
    login = f"{user}:{parts.password}" if parts.password else user
    async with server:
        yield f"postgresql://{login}@127.0.0.1:{port}{parts.path}?sslmode=disable", tap
