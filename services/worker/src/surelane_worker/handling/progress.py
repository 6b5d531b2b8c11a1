"""Tell operators how far a handler is."""

import asyncio
from contextlib import suppress

from surelane.encryption.keys import SealedError
from surelane.errors import SurelaneError
from surelane_service.logs import Logger
from surelane_worker.handling.records import plain
from surelane_worker.handling.steps import Steps
from surelane_worker.slack.notes import ClaimLostError

LONGEST = 200
"""Characters; a longer text is cut."""
BETWEEN = 1.0
"""Seconds between two writes, unless the attempt ends."""


class Progress:
    """The latest text about one event. Background tasks write it, so that the handler does not wait."""

    def __init__(self, steps: Steps, log: Logger, between: float = BETWEEN) -> None:
        self._steps = steps
        self._log = log
        self._between = between
        self._text = self._written = ""
        self._next = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def say(self, text: str) -> None:
        """Replace the text."""
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
        event, text = self._steps.event, self._text
        try:
            await self._steps.fenced(lambda: self._steps.engine.store_progress(event.id, event.claim, text))
        except (ClaimLostError, SurelaneError, SealedError) as error:
            self._log.warning("the progress was not stored", error=type(error).__name__)
        finally:  # a lost claim may cancel this; then nothing tries again
            self._written = text
        self._next = asyncio.get_running_loop().time() + self._between
        if self._text != text:
            self._write_soon()
