"""Tell operators of an event: by which tags they find it, and how far its handler is."""

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

from surelane.encryption.keys import SealedError
from surelane.errors import SurelaneError
from surelane_worker.handling.fence import Fence
from surelane_worker.handling.records import plain
from surelane_worker.slack.notes import ClaimLostError

LONGEST = 200
"""Characters; a longer text is cut."""
BETWEEN = 1.0
"""Seconds between two writes, unless the attempt ends."""

LONGEST_VALUE = 200
_NAME = re.compile(r"[\w.-]{1,40}", re.ASCII)


class Progress:
    """The latest text about one event. Background tasks write it, so that the handler does not wait."""

    def __init__(self, fence: Fence, between: float = BETWEEN) -> None:
        self._fence = fence
        self._between = between
        self._text = self._written = ""
        self._next = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def say(self, text: str) -> None:
        text = plain(str(text))
        self._text = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
        if self._timer is None and (self._writing is None or self._writing.done()):
            self._write_soon()

    async def end(self) -> None:
        """Write the last text, if it is not written yet. A stop of the handler ends the wait for it."""
        with suppress(asyncio.CancelledError):
            while self._text != self._written:
                if self._timer is not None:
                    self._timer.cancel()
                    self._write_now()
                if self._writing is not None:
                    await asyncio.wait([self._writing])

    def _write_soon(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._next - loop.time(), self._write_now)

    def _write_now(self) -> None:
        self._timer = None
        self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        text = self._text
        try:
            await self._fence.send(self._fence.engine.store_progress, text)
        except (ClaimLostError, SurelaneError, SealedError) as error:
            self._fence.log.warning("the progress was not stored", error=type(error).__name__)
        finally:  # a lost claim may cancel this; then nothing tries again
            self._written = text
        self._next = asyncio.get_running_loop().time() + self._between
        if self._text != text:
            self._write_soon()


class TagError(ValueError):
    """A tag cannot be set; none of the call's tags was."""


async def set_tags(fences: Iterable[Fence], tags: Mapping[str, object]) -> None:
    """Set tags of events; see :meth:`Context.tag`."""
    checked = {_name(name): _value(name, value) for name, value in tags.items()}
    for fence in fences:
        await fence.send(fence.engine.store_tags, checked)


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise TagError(f"the name of a tag has 1 to 40 letters, digits, _, . and -: {name!r:.80}")
    return name


def _value(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | int | float):
        raise TagError(f"tag {name} is a {type(value).__name__}: give it a text or a number")
    text = value if isinstance(value, str) else json.dumps(value)
    if not 0 < len(text) <= LONGEST_VALUE or not text.isprintable():
        raise TagError(f"the value of tag {name} has 1 to {LONGEST_VALUE} printable characters")
    return text
