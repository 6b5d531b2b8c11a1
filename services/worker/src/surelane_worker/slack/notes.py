"""Keep on an event's row what Slack did for it, so that a later attempt does not ask Slack for it again.

A reply is noted twice: before it is sent, and with its timestamp once Slack answered. So a later attempt knows of each
reply whether it was sent. It looks in Slack only for one whose attempt ended in between.
"""

import asyncio
import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

from surelane.errors import DatabaseUnavailable, SurelaneError, TransientConflict
from surelane.events import Event
from surelane_service.engine import Engine, Settled
from surelane_service.logs import Logger

TRIES = 40
PAUSE = 0.05
"""Seconds between two tries to note something on a row that another transaction has locked."""
AWAY = 0.5


class ClaimLostError(Exception):
    """The worker has lost its claim of the event: another attempt may send this reply."""

    def __init__(self) -> None:
        """Say it in one sentence."""
        super().__init__("the claim of this event is lost, so its reply is not sent")


class Sent(Enum):
    """What the notes say of a reply that has no timestamp."""

    NO = "no"
    PERHAPS = "perhaps"


class Notebook:
    """The notes about one event: its replies and streams by ordinal, and further calls by name."""

    def __init__(self, engine: Engine, event: Event, log: Logger, *, away: float = AWAY) -> None:
        """``away``: seconds between two tries while the database cannot be reached."""
        self._away = away
        self._engine = engine
        self._event = event
        self._log = log
        self._notes: dict[str, Any] = json.loads(event.notes) if event.notes else {}
        self._lock = asyncio.Lock()
        self._written = event.notes

    def reply(self, ordinal: int | str) -> str | Sent:
        """Return a reply's timestamp (``""`` through a ``response_url``), or whether it was sent."""
        replies = self._part("replies")
        if str(ordinal) not in replies:
            return Sent.NO
        noted = replies[str(ordinal)]
        return noted if isinstance(noted, str) else Sent.PERHAPS

    def place_elsewhere(self, ordinal: int | str, channel: str) -> None:
        """Note with the next note that a reply or a stream stands in another channel than its event."""
        self._part("elsewhere")[str(ordinal)] = channel

    async def note_reply(self, ordinal: int | str, ts: str | None) -> None:
        """Note a reply's timestamp; ``None``: it is being sent.

        A reply that is to be sent waits for the database: without its note, a later attempt would repeat it. The wait
        ends with the lease at the latest, because the handler is stopped then.

        Raises:
            ClaimLostError: the reply must not be sent.
        """
        self._part("replies")[str(ordinal)] = ts
        await self._write(must=ts is None)

    async def forget_reply(self, ordinal: int | str) -> None:
        """Note that a reply was not sent, because Slack refused it."""
        self._part("replies").pop(str(ordinal), None)
        await self._write()

    def stream(self, ordinal: int | str) -> Mapping[str, Any]:
        """Return the note of this or an earlier attempt about a streamed message: ``ts`` and so on, or nothing."""
        noted: Mapping[str, Any] = self._part("streams").get(str(ordinal), {})
        return noted

    def has_stream(self, ts: str) -> bool:
        """Return whether a streamed message with this timestamp is noted."""
        return any(noted["ts"] == ts for noted in self._part("streams").values())

    async def note_stream(self, ordinal: int | str, ts: str | None, *, stopped: bool, **more: Any) -> None:  # noqa: ANN401 - JSON
        """Note a streamed message's timestamp; ``None``: it is being begun, and waits as a reply does.

        ``more`` says how to end it if the event ends first: the trigger ``event_hist_streams`` reads it.

        Raises:
            ClaimLostError: it must not be begun.
        """
        self._part("streams")[str(ordinal)] = {"ts": ts, "stopped": stopped, **more}
        await self._write(must=ts is None)

    async def forget_stream(self, ordinal: int | str) -> None:
        """Note that a message was not begun, or is removed."""
        self._part("streams").pop(str(ordinal), None)
        await self._write()

    def call(self, name: str) -> str | None:
        """Return what a call by this name made, such as a view's id; ``None``: no answer came."""
        made = self._part("calls").get(name)
        return made if isinstance(made, str) else None

    async def note_call(self, name: str, made: str) -> None:
        """Note what a call made."""
        self._part("calls")[name] = made
        await self._write()

    def _part(self, name: str) -> dict[str, Any]:
        part: dict[str, Any] = self._notes.setdefault(name, {})
        return part

    async def _write(self, *, must: bool = False) -> None:
        """Store the notes, one write at a time: a later one must not be overtaken. If they ``must`` be stored, wait.

        A row that stays locked for two seconds is given up in any case: then a later attempt may repeat a reply.
        """
        async with self._lock:
            text = json.dumps({name: part for name, part in self._notes.items() if part})
            if text == self._written:
                return
            for _ in range(TRIES):
                answer = await self._note(text, must=must)
                if answer is not Settled.BUSY:
                    break
                await asyncio.sleep(PAUSE)
            if answer is Settled.DONE:
                self._written = text
            elif answer is Settled.STALE and must:
                raise ClaimLostError

    async def _note(self, text: str, *, must: bool) -> Settled | None:
        """Store notes once, or if they ``must`` be stored, once the database is there. Return the answer, if any."""
        warned = False
        while True:
            try:
                return await self._engine.note_event(self._event.id, self._event.claim, text)
            except SurelaneError as error:
                if not warned:
                    self._log.warning("could not note what Slack did", error=type(error).__name__, waits=must)
                warned = True
                if not (must and isinstance(error, DatabaseUnavailable | TransientConflict)):
                    return None
            await asyncio.sleep(self._away)
