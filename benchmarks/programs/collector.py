"""Collect OTLP over HTTP as cheaply as possible: read requests, count their bytes and discard them.

It is a process of its own and prints the count when it ends. The measured rate is lower by its CPU time.
"""

import asyncio
import re
import signal
import sys
from typing import cast

import uvloop

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


class Sink(asyncio.Protocol):
    """A connection from an exporter, which sends one request after another."""

    received = 0

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport has the same methods

    def data_received(self, data: bytes) -> None:
        if not self._left:
            head, end, data = (self._head + data).partition(b"\r\n\r\n")
            if not end:
                self._head = head
                return
            found = _LENGTH.search(head)
            self._head, self._left = b"", int(found[1]) if found else 0
            Sink.received += self._left
        self._left -= len(data)
        if self._left <= 0 and self._transport is not None:
            self._left = 0
            self._transport.write(ANSWER)


async def _run(port: int) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    server = await loop.create_server(Sink, "127.0.0.1", port)
    print("ready", flush=True)
    await stop.wait()
    server.close()
    print(Sink.received, flush=True)


if __name__ == "__main__":
    uvloop.run(_run(int(sys.argv[1])))
