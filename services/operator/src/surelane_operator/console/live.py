"""Keep open pages up to date: one reader per address, however many people look at it (ADR 0065)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from surelane.errors import SurelaneError
from surelane_operator.console.screen import Missing
from surelane_service.logs import get_logger

MOST_TOPICS = 60
"""Addresses that are read at once. Each is a query every few seconds."""
MOST_VIEWERS = 64
"""Open pages. Each is a connection of 192 on the private port; probes and requests need the others."""
MOST_EACH = 12
"""Open pages of one person, so that five people at least have live pages."""

Render = Callable[[], Awaitable[str]]
_logger = get_logger(__name__)


class Full(Exception):  # noqa: N818 - it is an answer, not a failure
    """There are too many open pages to keep one more up to date. The message says whose."""


@dataclass(frozen=True, slots=True)
class News:
    """What a look at the database brought: a new content as ``text``, or why there is none (``away``, ``gone``)."""

    sort: Literal["fragment", "same", "away", "gone"]
    text: str = ""


class Live:
    """The topics that have viewers. A topic is the address of a screen; its task ends with its last viewer."""

    def __init__(
        self, *, most_topics: int = MOST_TOPICS, most_viewers: int = MOST_VIEWERS, most_each: int = MOST_EACH
    ) -> None:
        self._topics: dict[str, _Topic] = {}
        self._most_topics, self._most_viewers, self._most_each = most_topics, most_viewers, most_each
        self._viewers = Counter[str]()
        self._closed = False

    @property
    def topics(self) -> int:
        return len(self._topics)

    @asynccontextmanager
    async def follow(
        self, key: str, render: Render, every: float, who: str
    ) -> AsyncIterator[AsyncIterator[News]]:
        """Follow a topic for the length of the block, or raise :class:`Full`.

        Viewers of one key share the first one's ``render``. A slow one misses news in between, and gets the newest.
        """
        if self._viewers[who] >= self._most_each:
            raise Full(f"{self._most_each} of your pages are live: close some")
        topic = self._topics.get(key)
        full = topic is None and len(self._topics) >= self._most_topics
        if full or self._closed or self._viewers.total() >= self._most_viewers:
            raise Full("as many pages are live as this service keeps up to date")
        if topic is None:
            topic = self._topics[key] = _Topic(render, every)
        topic.viewers += 1
        self._viewers[who] += 1
        try:
            yield topic.news()
        finally:
            self._viewers -= Counter((who,))
            topic.viewers -= 1
            if not topic.viewers:
                # Before the first await: a new viewer of this address begins a topic of its own.
                if self._topics.get(key) is topic:
                    del self._topics[key]
                await topic.stop()

    async def close(self) -> None:
        """End all topics. Their viewers' news end."""
        self._closed = True
        for topic in list(self._topics.values()):
            await topic.stop()


class _Topic:
    """One address, its reader and its latest content."""

    def __init__(self, render: Render, every: float) -> None:
        self.viewers = 0
        self._render, self._every = render, every
        self._looks = 0
        self._version = 0
        self._latest = News("same")
        self._looked = asyncio.Condition()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        async with self._looked:
            self._looked.notify_all()

    async def news(self) -> AsyncIterator[News]:
        """Yield the newest content, then what each look brings, until the topic ends."""
        looks = version = 0
        while True:
            async with self._looked:
                await self._looked.wait_for(lambda seen=looks: self._looks > seen or self._task.done())  # type: ignore[misc]
            if self._looks == looks:
                return
            found = News("same") if version == self._version else self._latest
            # Before the yield: the topic may go on while the viewer takes its news.
            looks, version = self._looks, self._version
            yield found

    async def _run(self) -> None:
        while True:
            found = await self._look()
            async with self._looked:
                self._looks += 1
                if found != self._latest:
                    self._version += 1
                    self._latest = found
                self._looked.notify_all()
            await asyncio.sleep(self._every)

    async def _look(self) -> News:
        try:
            return News("fragment", await self._render())
        except Missing as missing:
            return News("gone", str(missing))
        except SurelaneError as error:
            return News("away", type(error).__name__)
        except Exception:
            # One bad look must not end the page of everybody who watches.
            _logger.exception("a screen cannot be read")
            return News("away", "the page cannot be shown; the log of this service says why")
