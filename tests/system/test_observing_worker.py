"""The worker's metrics and logs, and the spans that tests/system/test_trace_trees.py does not look at."""

import json

from surelane.calls import Connection
from surelane.trace_context import trace_id_of
from surelane_service.intake import Intake
from tests.otlp import receiving
from tests.processes import until
from tests.system.worker import ended, enqueue, metrics, worker

SEND = "a1b2c3d4e5f60718"
"""The span that stored an event, made up."""


async def test_linked_setting_starts_a_trace_of_its_own(database: str, connection: Connection) -> None:
    event = {"type": "app_mention", "text": "status", "ts": "1.1"}
    envelope = {"type": "event_callback", "event_id": "EvLINKED", "team_id": "T1", "event": event}
    trace = trace_id_of("EvLINKED")
    async with receiving() as receiver:
        async with worker(database, SURELANE_PROCESS_SPAN="linked", **receiver.env):
            (stored,) = await Intake(connection).insert_events(
                [json.dumps(envelope)], traceparents=[f"00-{trace}-{SEND}-01"]
            )
            await ended(connection, stored.id)
        (process,) = receiver.named("process slack.app_mention")
    assert (process.trace_id != trace, process.parent, process.links) == (True, "", {SEND})


async def test_metrics_count_by_kind(database: str, connection: Connection) -> None:
    async with worker(database) as running:
        await ended(connection, await enqueue(connection, "echo"))
        await ended(connection, await enqueue(connection, "raise"))
        shown = (await metrics(running)).splitlines()
    kind = 'messaging_destination_name="{}"'
    for metric, counted, value in (
        ("messaging_client_consumed_messages", "echo", "1.0"),
        ("messaging_client_consumed_messages", "raise", "3.0"),
        ("surelane_event_retries", "raise", "2.0"),
        ("surelane_event_failures", "raise", "3.0"),
        ("messaging_process_duration_seconds_count", "raise", "3.0"),
        ("surelane_event_finish_latency_seconds_count", "echo", "1.0"),
    ):
        lines = [line for line in shown if line.startswith(metric) and kind.format(counted) in line]
        assert [line.split()[-1] for line in lines] == [value], (metric, lines)


async def test_logs_say_what_failed_once_and_never_what_was_written(
    database: str, connection: Connection
) -> None:
    async with worker(database) as running:
        identity = await enqueue(connection, "raise", {"message": "a confidential word"}, max_attempts=1)
        await ended(connection, identity)
        await until(lambda: any("handler failed" in line for line in running.output), what="the log line")
    (line,) = [json.loads(line) for line in running.output if "handler failed" in line]
    told = {"event_id": str(identity), "kind": "raise", "attempt": 1, "error": "RuntimeError"}
    assert line.items() >= told.items()
    assert not any("confidential" in line for line in running.output)
