"""Keep one port for a service whose process changes: pass its connections on to the port of the current process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Front:
    """A port that stays."""

    def __init__(self) -> None:
        self.behind: str | None = None
        """A URL of the current process; ``None``: there is none, so connections are closed."""

    @asynccontextmanager
    async def serving(self, host: str, port: int) -> AsyncIterator[None]:
        """Listen for the length of the block."""
        server = await asyncio.start_server(self._pass_on, host, port)
        try:
            yield
        finally:
            server.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind = urlsplit(self.behind or "")
            there, answer = await asyncio.open_connection(behind.hostname, behind.port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, answer), _copy(there, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()
