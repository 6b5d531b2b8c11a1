"""The services export exactly the documented metrics, scraped and pushed. The queue's are among them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import aiohttp
from prometheus_client import Metric

from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from surelane_service.engine import Engine
from tests.metrics import documented, documented_labels, exported, labels, ours, value
from tests.otlp import receiving
from tests.processes import Service, service
from tests.scenario import eventually
from tests.system.ingest_client import Slack, mention, settings
from tests.system.test_doctor import hold_vacuum
from tests.system.worker import ended, enqueue, worker

OF_SOME = {"error_type", "messaging_operation_name"}
"""Labels that not every series has."""


@asynccontextmanager
async def both(database: str, **env: str) -> AsyncIterator[tuple[Service, Service]]:
    async with (
        service("surelane_ingest", settings(database, **env)) as ingest,
        worker(database, SURELANE_SLACK_LIMITS="on", **env) as working,
    ):
        yield ingest, working


async def use(connection: Connection, ingest: Service, working: Service) -> None:
    """Make both do one of everything that they count."""
    async with aiohttp.ClientSession() as session:
        slack = Slack(session, ingest.url)
        await slack.event(mention())
        await slack.event(mention(bot_id="B1"))
    await lags(working, connection, 1)
    await ended(connection, await enqueue(connection, "raise"))
    await eventually(lambda: calls_slack(working), expected=True, within=60)


async def calls_slack(working: Service) -> bool:
    return bool((await exported(working.private_url))["surelane_slack_wait_seconds"].samples)


async def test_exactly_what_is_documented_is_shown_and_goes_out_by_otlp(
    database: str, connection: Connection
) -> None:
    await Queue(connection).enqueue("unhandled")
    await hold_vacuum(connection, holder="session", pid=1)  # its figures stand: no replica measures again
    async with receiving() as receiver:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "60000"}
        async with both(database, **env) as (ingest, working):
            await use(connection, ingest, working)
            shown = [await exported(each.private_url) for each in (ingest, working)]
    for (name, section), metrics in zip(
        (("surelane-ingest", "Ingest"), ("surelane-worker", "Worker")), shown, strict=True
    ):
        assert ours(metrics) == documented(section, "Both")
        expected = {pushed_name(each) for each in documented(section, "Both")}
        pushed = receiver.metrics[name]
        assert {each for each in pushed if each.startswith(("surelane.", "messaging."))} == expected
        for family, listed in documented_labels().items():
            if family in metrics:
                assert labels(metrics[family]) | OF_SOME >= listed >= labels(metrics[family]), family


def pushed_name(name: str) -> str:
    """Return a metric's name by OTLP, as docs/metrics.md describes it."""
    plain = name.removesuffix("_total").removesuffix("_seconds").replace("_", ".")
    for word in ("rate_limited", "oldest_pending", "group_waiting", "dead_rows"):
        plain = plain.replace(word.replace("_", "."), word)
    return plain


async def test_what_workers_store_is_counted_by_kind_and_they_tell_their_slots_and_their_clock(
    database: str, connection: Connection
) -> None:
    due = datetime.now(UTC) - timedelta(minutes=1)
    await Engine(connection).set_cron("yearly", kind="nothing", schedule="0 0 1 1 *", next_at=due)
    async with worker(database, SURELANE_CONCURRENCY="7", SURELANE_INTERACTIVE_CONCURRENCY="3") as working:
        shown = await exported(working.private_url)
        for name in ("messaging_client_consumed_messages_total", "surelane_event_failures_total"):
            assert value(shown, name, messaging_destination_name="echo") == 0, "counts begin at zero"
        await ended(connection, await enqueue(connection, "plan", {"parts": 2}))

        async def sent() -> dict[str, float | None]:
            shown, name = await exported(working.private_url), "messaging_client_sent_messages_total"
            kinds = ("subtask", "synthesize", "nothing", "plan")
            return {kind: value(shown, name, messaging_destination_name=kind) for kind in kinds}

        async def told() -> bool:
            row = await connection.fetchrow("select slots, interactive_slots, clock_offset from agent.worker")
            assert row is not None
            return (row[0], row[1]) == (7, 3) and row[2] is not None and abs(row[2]) < timedelta(seconds=10)

        expected: dict[str, float | None] = {"subtask": 2, "synthesize": 1, "nothing": 1, "plan": 0}
        await eventually(sent, expected, within=60)
        await eventually(told, expected=True, within=60)


async def test_a_job_that_is_there_already_is_not_counted_as_stored(connection: Connection) -> None:
    sent: list[str] = []
    queue = Queue(connection, sent.extend)
    for _ in range(2):
        await queue.enqueue("mail", item_key="welcome:ada")
    await queue.fan_out([Job("part")], Continuation("whole"))
    assert sent == ["mail", "part", "whole"]


async def with_figures(replica: Service) -> dict[str, Metric]:
    """Wait until it shows the queue's figures: a busy server takes longer to measure than a scrape waits."""
    async with asyncio.timeout(60):
        while "surelane_queue_depth" not in (shown := await exported(replica.private_url)):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.1)
    return shown


async def test_every_replica_shows_the_queue(database: str, connection: Connection) -> None:
    queue = Queue(connection)
    await queue.enqueue("unhandled")
    await queue.enqueue("unhandled", run_at=await connection.fetchval("select now() + interval '1 day'"))
    await queue.enqueue("parked")
    await connection.execute("select agent.pause_kind('parked')")
    async with both(database) as replicas:
        for replica in replicas:
            shown = await with_figures(replica)
            of = {"messaging_destination_name": "unhandled"}
            depths = [
                value(shown, "surelane_queue_depth", **of, state=state)
                for state in ("pending", "scheduled", "running")
            ]
            assert depths == [1, 1, 0]
            assert value(shown, "surelane_queue_paused", messaging_destination_name="parked") == 1
            age = value(shown, "surelane_queue_oldest_pending_age_seconds", **of)
            assert age is not None
            assert 0 <= age < 600


async def test_a_replica_without_database_shows_no_stale_figures(database: str) -> None:
    nowhere = database.replace("surelane_test_", "surelane_gone_")
    async with service("surelane_ingest", settings(nowhere), ready="/livez") as ingest:
        shown = await exported(ingest.private_url)
    assert "surelane_queue_workers" not in shown


async def lags(working: Service, connection: Connection, counted: int) -> float:
    """Enqueue events until so many lags are counted; return their average.

    The worker counts a lag only for an event that arrives while it sleeps.
    """
    async with asyncio.timeout(60):
        while True:
            await ended(connection, await enqueue(connection, "echo"))
            samples = (await exported(working.private_url))["surelane_notification_lag_seconds"].samples
            by_name = {sample.name.rpartition("_")[2]: sample.value for sample in samples}
            if by_name.get("count", 0) >= counted:
                return by_name["sum"] / by_name["count"]


async def test_lost_notices_show_as_lag(database: str, connection: Connection) -> None:
    async with worker(database, SURELANE_POLL_INTERVAL="1s") as working:
        soon = await lags(working, connection, 3)
        await connection.execute("drop trigger event_inserted on agent.event")
        assert 0 < soon < await lags(working, connection, 6)
