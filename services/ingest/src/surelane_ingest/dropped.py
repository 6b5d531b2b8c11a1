"""Keep which signed deliveries became no event, and why: for people who ask where a message went.

Notes are stored in batches, beside the events. They wait while events wait for the database, and the newest are lost
first: no request ever waits for a note.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Self

from aiohttp import web

from surelane.calls import Pool
from surelane.slack import Payload, edited_message, inner_event, key_of, kind_of, place_of
from surelane_ingest.app import RequestRefused
from surelane_ingest.frames import word
from surelane_service.intake import Dropped, Intake
from surelane_service.logs import get_logger
from surelane_service.webhooks import ID

EVERY = 2.0
"""Seconds that one batch covers."""
MOST = 2000
"""The most notes that wait: a thousand a second. Slack delivers at most 30,000 an hour of a workspace."""
MAX_TEXT = 200
"""The most characters of each text."""

_logger = get_logger(__name__)


class Notes:
    """Note deliveries, and store the notes until the end of the block."""

    def __init__(self, pool: Pool, budget: timedelta, busy: Callable[[], bool] = lambda: False) -> None:
        """``budget``: how long storing a batch may take. ``busy`` returns whether events wait for the database."""
        self._intake, self._budget, self._busy = Intake(pool), budget.total_seconds(), busy
        self._waiting: list[tuple[float, Dropped]] = []
        self._lost = 0
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._flush()

    def of(self, payload: Payload | None, reason: str, key: str | None = None) -> None:
        """Note that Slack's payload became no event. ``key``: its natural key, where it is known."""
        given = payload or {}
        place, key = place_of(given), key or key_of(given)
        if reason == "subtype":
            inner = inner_event(given)
            reason = f"subtype {word((edited_message(inner) or inner).get('subtype'))}"
        self.note(Dropped(key, kind_of(given), reason, place.workspace, place.channel, place.message_ts))

    def refused(self, request: web.Request, refused: RequestRefused) -> None:
        """Note a signed webhook, or a remote agent's answer, that is refused."""
        name = request.match_info.get("name")
        key = request.headers[ID] if name is None else f"webhook:{name}:{request.headers[ID]}"
        self.note(Dropped(key, request.path, f"{refused.status} {refused}"))

    def note(self, dropped: Dropped) -> None:
        if len(self._waiting) >= MOST:
            self._lost += 1
            return
        self._waiting.append((time.monotonic(), dropped))
        self._some.set()

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            await asyncio.sleep(EVERY)
            if not self._busy():
                self._some.clear()
                await self._flush()

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        now = time.monotonic()
        try:
            async with asyncio.timeout(self._budget):
                await self._intake.note_dropped([(now - at, _short(each)) for at, each in waiting])
        except Exception as error:  # noqa: BLE001 - without the notes nothing else fails
            self._lost += len(waiting)
            _logger.debug("notes of dropped deliveries are not stored", error=type(error).__name__)
        if self._lost:
            _logger.warning(
                "some dropped deliveries are not noted: surelane events why misses them", lost=self._lost
            )
            self._lost = 0


def _short(dropped: Dropped) -> Dropped:
    texts = (getattr(dropped, name) for name in Dropped.__slots__)
    return Dropped(*(text and _storable(text[:MAX_TEXT]) for text in texts))


def _storable(text: str) -> str:
    return text.replace("\0", "").encode("utf-8", "replace").decode()
