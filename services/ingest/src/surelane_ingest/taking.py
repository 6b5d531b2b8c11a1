"""Take what Slack sends, over HTTP or Socket Mode: store events, wait for their answers, and note the rest.

Bots' messages beyond a bound are not taken.
"""

import asyncio
import json
import secrets
from collections import OrderedDict, deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import assert_never

from surelane.codec import Codec, SealedError
from surelane.errors import SurelaneError, described
from surelane.slack import is_shared, key_of, place_of
from surelane_ingest import envelope
from surelane_ingest.answers import AnswerWaits, Request
from surelane_ingest.app import RequestRefused
from surelane_ingest.dropped import Notes
from surelane_ingest.installing import Installer
from surelane_ingest.writer import Answer, NotStored, Writer, answered, delivered, send_span
from surelane_service.logs import Logger, get_logger
from surelane_service.modals import said
from surelane_service.telemetry.spans import Tracer, within

SUBMISSION = "slack.view_submission"
ARRIVED = (
    "Your input has arrived and is being handled. It takes longer than usual; you may close this window."
)
REFUSED = "false"
"""The answer to a command or a modal that nothing handles."""
MOST_UNTAKEN = 100
NO_RETRY = {"x-slack-no-retry": "1"}
"""Stops Slack's retries. Slack reads it on answers other than 200 only (Slack's documentation, Events API)."""

WITHIN = 60.0
"""Seconds within which the messages of a thread are counted."""
MOST_THREADS = 10_000
"""Threads that are remembered. Beyond it, the one that was quiet for longest is forgotten."""

Thread = tuple[str | None, str | None, str | None]


class Loops:
    """Count the messages of each thread since a person wrote there: two bots may answer each other endlessly.

    This process alone knows the counts.
    """

    def __init__(self, most: int) -> None:
        """``most``: how many are taken in :data:`WITHIN`."""
        self._most = most
        self._threads: OrderedDict[Thread, deque[float]] = OrderedDict()

    def refuses(self, event: envelope.Take) -> bool:
        """Return whether an event is one too many. A person's message ends the count of its thread."""
        if event.by_person is None:
            return False
        thread = _thread(event)
        if event.by_person:
            self._threads.pop(thread, None)
            return False
        since = asyncio.get_running_loop().time() - WITHIN
        taken = self._threads.get(thread, deque[float]())
        while taken and taken[0] <= since:
            taken.popleft()
        return len(taken) >= self._most

    def count(self, event: envelope.Take) -> None:
        """Count an event that was stored, and not for the second time."""
        if event.by_person is not False:
            return
        thread = _thread(event)
        self._threads.setdefault(thread, deque()).append(asyncio.get_running_loop().time())
        self._threads.move_to_end(thread)
        if len(self._threads) > MOST_THREADS:
            self._threads.popitem(last=False)


@dataclass(frozen=True)
class Taker:
    """Take what Slack sends. ``tracer``, ``installer``: ``None`` where tracing or installs are off.

    ``notes`` keeps what became no event. ``loops`` says which messages that no person wrote are too many.
    """

    writer: Writer
    answers: AnswerWaits
    tracer: Tracer | None
    installer: Installer | None
    codec: Codec
    notes: Notes
    loops: Loops
    _untaken: set[str] = field(init=False, default_factory=set)
    # Bound: an unbound logger costs more per silenced line than the rest of the answer. Not bound on import:
    # binding fixes the configuration of the logs, which starts after the imports.
    _log: Logger = field(init=False, default_factory=lambda: get_logger(__name__).bind())

    async def take(self, sent: envelope.Envelope, arrived: float, retry: str | None = None) -> str | None:
        """Store an event, or note what else Slack sends. Return the answer as JSON text; ``None``: it is empty.

        Args:
            arrived: when, by the event loop's clock.
            retry: the number of Slack's retry; ``None``: it is none.

        Raises:
            RequestRefused: it is malformed (400), the event is not known to be stored (400 or 503), or nothing handles
                it (404).
        """
        metrics = self.writer.metrics
        sent = self._unless_loop(sent)
        if isinstance(sent, envelope.Removed):
            if self.installer is not None:
                await self.installer.remove(sent)
            sent = sent.then
        match sent:
            case envelope.Take():
                with self.answers.request(arrived) if sent.waits else nullcontext() as waiting:
                    await self._store(retry, sent, waiting)
                    answer = None if waiting is None else await waiting.answer()
                if answer == REFUSED:
                    named = {"event_id": sent.key, "kind": sent.kind}
                    self.notes.of(sent.payload, "no_handler", sent.key)
                    raise RequestRefused(404, "no handler takes this", headers=NO_RETRY, event=named)
                return answer or _unanswered(sent)
            case envelope.Challenge(challenge):
                self._log.info("url verified")
                return json.dumps({"challenge": challenge})
            case envelope.Ignore():
                self._ignore(sent)
            case envelope.RateLimited(team, minute):
                metrics.rate_limited += 1
                self.notes.of({"team_id": team, "type": "app_rate_limited"}, "rate_limited")
                self._log.warning("slack drops events of a workspace with too many", team=team, minute=minute)
            case envelope.Malformed(reason):
                self.notes.of(None, f"malformed: {reason}")
                raise RequestRefused(400, reason, headers=NO_RETRY)
            case _:
                assert_never(sent)
        return None

    def _ignore(self, sent: envelope.Ignore) -> None:
        self.writer.metrics.ignored[sent.reason] += 1
        self._log.debug("request ignored", reason=sent.reason)
        if sent.payload is not None:
            self.notes.of(sent.payload, sent.reason)
        if sent.untaken is not None:
            self._note_untaken(sent.untaken)

    def _unless_loop(self, sent: envelope.Envelope) -> envelope.Envelope:
        if not isinstance(sent, envelope.Take) or not self.loops.refuses(sent):
            return sent
        told = "a message that no person wrote is dropped: its thread had too many of them within a minute"
        self._log.warning(told, event_id=sent.key, kind=sent.kind, setting="SURELANE_LOOP_LIMIT")
        return envelope.Ignore("loop", payload=sent.payload)

    def _note_untaken(self, name: str) -> None:
        """Warn once of an event type that Slack sends and this service drops, and of :data:`MOST_UNTAKEN` types."""
        if name not in self._untaken and len(self._untaken) < MOST_UNTAKEN:
            self._untaken.add(name)
            told = "Slack sends an event type that is not stored; add it to bot_events of the manifest, or unsubscribe"
            self._log.warning(told, type=name[:50])

    async def _store(self, retry: str | None, event: envelope.Take, waiting: Request | None) -> None:
        metrics = self.writer.metrics
        answer = await self._insert(retry, event, waiting)
        if isinstance(answer, NotStored):
            metrics.sent(event.kind, answer.name.lower())
            self.notes.of(event.payload, answer.name.lower(), event.key)
            named = {"event_id": event.key, "kind": event.kind}
            if answer is NotStored.UNSTORABLE:
                raise RequestRefused(400, answer.value, headers=NO_RETRY, event=named)
            raise RequestRefused(503, answer.value, event=named)
        if answer.duplicate:
            metrics.duplicates += 1
            # Perhaps one message under two ids. Slack's retry leads to its event by its id.
            if retry is None or event.key != key_of(event.payload):
                self.notes.of(event.payload, "duplicate")
            if self.installer is not None and event.payload is not None and envelope.is_report(event):
                await self.installer.note_report(answer.id, event.payload)
        else:
            metrics.sent(event.kind)
            self.loops.count(event)
        if event.altered:
            metrics.altered += 1
            self._log.warning("event stored with replaced characters", event_id=event.key, kind=event.kind)
        self._log.debug(
            "event stored", event_id=event.key, kind=event.kind, id=answer.id, duplicate=answer.duplicate
        )

    async def _insert(self, retry: str | None, event: envelope.Take, waiting: Request | None) -> Answer:
        body, key = event.body, event.key
        if self.codec.on:
            try:
                body, key = await self.codec.seal_event(body, key, event.payload)
            except (SurelaneError, SealedError) as error:
                self._log.error("an event cannot be encrypted", kind=event.kind, **described(error))
                return NotStored.NO_KEY
        # The trace's id follows from the key, so that a retry continues the trace. Without a key it is random.
        span, traceparent = send_span(self.tracer, event.key or secrets.token_hex(16), event.kind)
        if span is None:
            return await self.writer.store(body, key, traceparent, waiting)
        with within(span):
            delivered(span, retry)
            answer = await self.writer.store(body, key, traceparent, waiting)
            answered(span, answer)
            return answer


def _unanswered(event: envelope.Take) -> str | None:
    """Return what Slack gets if no worker answered in time: a modal says that its input has arrived.

    With an empty answer it would close as if its input were accepted.
    """
    view = (event.payload or {}).get("view")
    if event.kind != SUBMISSION or not isinstance(view, dict) or not view.get("title"):
        return None
    return json.dumps({"response_action": "update", "view": said(view, ARRIVED)})


def _thread(event: envelope.Take) -> Thread:
    """Return the thread of a message; a direct message that begins one belongs to those beside it."""
    payload = event.payload or {}
    place = place_of(payload)
    top_level = (place.channel or "").startswith("D") and place.thread_ts == place.message_ts
    workspace = None if is_shared(payload) else place.workspace
    return workspace, place.channel, None if top_level else place.thread_ts
