"""Send requests to ingest byte by byte, as no HTTP client does."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp

from tests.system.ingest_client import Slack, signed

PLAIN = b"Host: ingest\r\nContent-Type: application/json\r\n"


@asynccontextmanager
async def connected(
    port: int, *, limit: int = 65536, local: str | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to the service, from the address ``local`` if it is given."""
    given = (local, 0) if local else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit, local_addr=given)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def closed(reader: asyncio.StreamReader) -> None:
    """Wait until the service closes a connection. It resets one that it has not read to the end."""
    with suppress(ConnectionError):
        await reader.read()


async def raw(port: int, request: bytes, *, answers: int = 0, quiet: float = 0.5) -> bytes:
    """Return the service's answers to ``request`` on one connection, until it closes it or is ``quiet``.

    Wait for ``answers`` answers, on a busy machine too.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        writer.write(request)
        async with asyncio.timeout(30):
            patience = 30 if answers else quiet
            while piece := await asyncio.wait_for(reader.read(65536), patience):
                answer += piece
                patience = quiet if len(statuses(answer)) >= answers else 30
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.close()
    return answer


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3})", answer)]


def post(body: bytes, headers: bytes = PLAIN) -> bytes:
    lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in signed(body).items())
    return b"POST /slack/events HTTP/1.1\r\n" + headers + lines


async def still_serves(url: str) -> None:
    """Fail unless the service answers a valid request."""
    async with aiohttp.ClientSession() as session:
        assert (await Slack(session, url).event({"type": "url_verification", "challenge": "x"})).status == 200
