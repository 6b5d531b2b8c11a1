"""No text that people wrote and no secret is exported or logged, at the most talkative log level."""

import json
from dataclasses import replace

import pytest

from tests.otlp import PROTOCOLS
from tests.processes import until
from tests.scenario import eventually, new_mention, send
from tests.system.traced import said, traced

TEXT, FIELD, WORDS = (f"marked-{what}" for what in ("text", "field", "words"))
TALKATIVE = {"LOG_LEVEL": "debug", "OTEL_METRIC_EXPORT_INTERVAL": "300"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_what_is_marked_is_in_no_span_no_metric_and_no_log_line(database: str, protocol: str) -> None:
    async with traced(database, protocol, workers=1, env=TALKATIVE) as system:
        mention = said(await new_mention(system.running.system), f"fail-first {TEXT}")
        envelope = json.loads(mention.body)
        envelope["event"]["client_msg_id"] = FIELD
        mention = replace(mention, body=json.dumps(envelope).encode())
        assert await send(system.running.system, mention) == 200
        await system.ended(mention)
        await system.spans(mention.event_id, send=1, process=2, settle=2)
        count = "select count(*) from agent.event"  # a settle that is shared has one span
        await eventually(lambda: system.query(count), "0", within=60)
        leaked = await system.query(
            f"""select agent.enqueue('leak', '{json.dumps({"secret": WORDS})}', _max_attempts => 1)"""
        )
        (own,) = [span for span in await system.spans(leaked, process=1, settle=1) if "own" in span.name]
        assert [event.name for event in own.span.events] == ["exception"]
        assert WORDS in await system.query(f"select errors from agent.event_hist where id = {leaked}")
        await until(lambda: "metrics" in system.receiver.requests, what="an export of metrics")

    running = system.running
    logs = "\n".join([*running.ingest.output, *running.workers[0].output])
    assert "RuntimeError" in logs
    assert "it was caught" in logs
    assert "exception in the event loop" in logs
    secrets = (running.system.signing_secret, running.system.bot_token)
    for marked in (TEXT, FIELD, WORDS, *secrets):
        assert marked.encode() not in system.receiver.exported, marked
        assert marked not in logs, marked
