"""Run a system that exports traces, send events to it, and read their spans."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from surelane.trace_context import trace_id_of
from tests.otlp import Received, Receiver, receiving
from tests.processes import until
from tests.scenario import BOT, PERSON, Mention, eventually, new_mention, outcomes, send
from tests.system.ingest_client import mention
from tests.system.whole import Whole, whole
from tests.system.worker import HANDLERS

INGEST, WORKER = "surelane-ingest", "surelane-worker"


@dataclass(frozen=True)
class Traced:
    """A running system, and the receiver of its traces."""

    running: Whole
    receiver: Receiver

    def of(self, key: str) -> list[Received]:
        """Return the spans of a key's trace, in the order of their starts."""
        return self.receiver.trace(trace_id_of(key))

    async def spans(self, key: str, **counts: int) -> list[Received]:
        """Wait for a number of spans per operation in a key's trace. Return them without statements."""

        def found() -> list[Received]:
            return [span for span in self.of(key) if span.name != "select"]

        def complete() -> bool:
            spans = found()
            return all(len(named(spans, operation)) >= count for operation, count in counts.items())

        await until(complete, within=60, what=f"{counts} in the trace of {key}")
        return found()

    async def ended(self, *mentions: Mention, within: float = 60) -> None:
        """Wait until mentions are handled."""
        expected = {mention.event_id: "completed" for mention in mentions}
        await eventually(lambda: outcomes(self.running.system, list(mentions)), expected, within=within)

    async def handled(self, words: str = "", *, within: float = 60) -> Mention:
        """Send a mention with these words and wait until it is handled."""
        sent = said(await new_mention(self.running.system), words)
        assert await send(self.running.system, sent) == 200
        await self.ended(sent, within=within)
        return sent

    async def query(self, statement: str) -> str:
        """Run a query as the owner."""
        return await self.running.system.query(statement)


@asynccontextmanager
async def traced(
    database: str, protocol: str, *, workers: int = 2, env: dict[str, str] | None = None, **worker_env: str
) -> AsyncIterator[Traced]:
    """Run the whole system with the tests' handlers. Every part exports to a receiver."""
    async with receiving(protocol) as receiver:
        # A failure reply is an event of its own, whose settle could share a round trip, and so a span, with another.
        plain = {"SURELANE_BACKOFF_BASE": "50ms", "SURELANE_FAILURE_REPLY": "off"}
        handlers = {"SURELANE_HANDLERS": HANDLERS, **plain, **worker_env}
        exporting = {**receiver.env, **(env or {})}
        async with whole(database, workers=workers, env=exporting, worker_env=handlers) as running:
            yield Traced(running, receiver)


def said(mention: Mention, words: str) -> Mention:
    """Return a mention with further words."""
    if not words:
        return mention
    envelope = json.loads(mention.body)
    envelope["event"]["text"] += f" {words}"
    return Mention(mention.event_id, mention.thread_ts, mention.text, json.dumps(envelope).encode())


def direct_message(text: str, channel: str) -> Mention:
    """Return a direct message to the bot."""
    sent = mention(text=text, type="message", channel_type="im", channel=channel, user=PERSON)
    sent |= {
        "team_id": "T0SURELANE",
        "authorizations": [{"team_id": "T0SURELANE", "user_id": BOT, "is_bot": True}],
    }
    return Mention(sent["event_id"], sent["event"]["ts"], text, json.dumps(sent).encode())


def named(spans: list[Received], operation: str) -> list[Received]:
    """Return the spans of an operation: ``send``, ``process``, …"""
    return [span for span in spans if span.name.partition(" ")[0] == operation]
