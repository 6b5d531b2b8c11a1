"""Send every change to every open page, as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress

from surelane_dev.simulator.workspace.model import JSON

BACKLOG = 2000


class Feed:
    """Send each item to every subscriber. End a subscription that cannot keep up; its page then connects anew."""

    def __init__(self) -> None:
        self._subscribers: set[asyncio.Queue[bytes | None]] = set()

    def publish(self, kind: str, item: JSON) -> None:
        """Send an item to every subscriber."""
        line = f"event: {kind}\ndata: {json.dumps(item)}\n\n".encode()
        for queue in list(self._subscribers):
            try:
                queue.put_nowait(line)
            except asyncio.QueueFull:
                self._subscribers.discard(queue)
                queue.get_nowait()
                queue.put_nowait(None)

    async def subscribe(self) -> AsyncIterator[bytes]:
        """Yield items in the wire format as they come, until the feed is closed."""
        with self._subscription() as queue:
            yield b"retry: 1000\n\n"
            while (line := await queue.get()) is not None:
                yield line

    def close(self) -> None:
        for queue in self._subscribers:
            with suppress(asyncio.QueueFull):
                queue.put_nowait(None)

    @contextmanager
    def _subscription(self) -> Iterator[asyncio.Queue[bytes | None]]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(BACKLOG)
        self._subscribers.add(queue)
        try:
            yield queue
        finally:
            self._subscribers.discard(queue)
