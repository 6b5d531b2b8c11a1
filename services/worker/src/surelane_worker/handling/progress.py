"""Tell operators of an event: by which tags they find it, and how far its handler is."""

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

from surelane.codec import SealedError
from surelane.errors import SurelaneError, described
from surelane_service.lifecycle import apart, sleep_unless
from surelane_worker.handling.fence import Fence
from surelane_worker.handling.records import plain
from surelane_worker.slack.notes import ClaimLostError

LONGEST = 200
"""Characters of a progress, which is cut, and of a tag's value."""
BETWEEN = 1.0
"""Seconds between two writes, unless the attempt ends."""
_NAME = re.compile(r"[\w.-]{1,40}", re.ASCII)


class Progress:
    """The latest text about one event. Background tasks write it, so that the handler does not wait."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._text = self._written = ""
        self._ending = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    def say(self, text: str) -> None:
        text = plain(str(text))
        self._text = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
        if self._writing is None or self._writing.done():
            self._writing = apart(self._write())

    async def end(self) -> None:
        """Write the last text, if it is not written yet. A stop of the handler ends the wait for it."""
        self._ending.set()
        if self._writing is not None:
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._writing])

    async def _write(self) -> None:
        while self._written != self._text:
            self._written = self._text  # also if this fails: nothing tries again
            try:
                await self._fence.send(self._fence.engine.store_progress, self._written)
            except (ClaimLostError, SurelaneError, SealedError) as error:
                self._fence.log.warning("the progress was not stored", **described(error))
            await sleep_unless(self._ending, BETWEEN)


class TagError(ValueError):
    """A tag cannot be set; none of the call's tags was."""


async def set_tags(fences: Iterable[Fence], tags: Mapping[str, object]) -> None:
    """Set tags of events; see :meth:`Context.tag`."""
    for name in tags:
        if not _NAME.fullmatch(name):
            raise TagError(f"the name of a tag has 1 to 40 letters, digits, _, . and -: {name!r:.80}")
    checked = {name: _value(name, value) for name, value in tags.items()}
    for fence in fences:
        await fence.send(fence.engine.store_tags, checked)


def _value(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | int | float):
        raise TagError(f"tag {name} is a {type(value).__name__}: give it a text or a number")
    text = value if isinstance(value, str) else json.dumps(value)
    if not 0 < len(text) <= LONGEST or not text.isprintable():
        raise TagError(f"the value of tag {name} has 1 to {LONGEST} printable characters")
    return text
