"""Builds the service from its settings, and takes it down in the order that loses nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from aiohttp.http import HttpProcessingError
from opentelemetry.sdk.trace import TracerProvider

from surelane import __version__
from surelane.logs import configure_logs, get_logger
from surelane.pool import close_pool, create_pool
from surelane.private import private_app, serving
from surelane.settings import load_settings
from surelane.telemetry import configure_telemetry
from surelane_ingest.app import Drain, SlackApp
from surelane_ingest.body import Bodies
from surelane_ingest.connections import Connections
from surelane_ingest.readiness import Readiness
from surelane_ingest.settings import IngestSettings
from surelane_ingest.signature import Signatures
from surelane_ingest.subscriptions import Subscriptions
from surelane_ingest.tracing import instrumented
from surelane_ingest.writer import FLUSHERS, Writer

SERVICE = "surelane-ingest"
CONNECTIONS = FLUSHERS + 1
"""One a flusher, and one for the readiness probe."""
KEEP_ALIVE = 75.0
"""Seconds an idle connection is kept: longer than the load balancers' 60, so that it is they who close it."""

_logger = get_logger(__name__)


@dataclass(frozen=True)
class Ingest:
    """A running service: its ports, its writer, and the switch that starts the drain."""

    port: int
    private_port: int
    writer: Writer
    drain: Drain


async def main(stop: asyncio.Event) -> None:
    """Runs the service until ``stop`` is set, then finishes what it took."""
    settings = load_settings(IngestSettings)
    configure_logs(SERVICE, settings.log_level)
    logging.getLogger("aiohttp.server").addFilter(_without_payload)
    telemetry = configure_telemetry(SERVICE, __version__)
    try:
        async with running(settings, telemetry.traces) as ingest:
            _logger.info("taking events", port=ingest.port, private_port=ingest.private_port)
            await stop.wait()
            ingest.drain.started = True
        _logger.info("stopped")
    finally:
        await asyncio.to_thread(telemetry.shutdown)


@asynccontextmanager
async def running(settings: IngestSettings, traces: TracerProvider | None = None) -> AsyncIterator[Ingest]:
    """Runs the service for the length of the block.

    At its end the public port closes first and its requests finish, within the drain timeout; then the writer
    ends, then the private port, which says until then that the service is not ready.

    Raises:
        SettingsError: a port is taken, or the database's URL is not one.
    """
    budget = settings.database_budget
    pool = await create_pool(
        settings.database_url.get_secret_value(),
        service=SERVICE,
        max_size=CONNECTIONS,
        statement_timeout=budget,
        connect_timeout=budget,
    )
    connections, drain = Connections(pool, budget), Drain()
    private = private_app(Readiness(connections, lambda: drain.started, budget).unready)
    try:
        async with (
            serving(
                private, settings.private_port, setting="SURELANE_PRIVATE_PORT", host=settings.host
            ) as private_port,
            Writer(connections, budget=budget, buffer=settings.buffer) as writer,
        ):
            with instrumented(traces):
                public = _public_app(settings, writer, drain, tracing=traces is not None)
            async with serving(
                public,
                settings.port,
                setting="SURELANE_PORT",
                host=settings.host,
                auto_decompress=False,
                keepalive_timeout=KEEP_ALIVE,
                shutdown_timeout=settings.drain_timeout.total_seconds(),
            ) as port:
                yield Ingest(port, private_port, writer, drain)
    finally:
        await close_pool(pool)


def _public_app(settings: IngestSettings, writer: Writer, drain: Drain, *, tracing: bool) -> web.Application:
    slack = SlackApp(
        signatures=Signatures(settings.signing_secrets),
        subscriptions=Subscriptions(settings.event_types),
        bodies=Bodies(settings.max_body, settings.body_memory),
        writer=writer,
        drain=drain,
        tracing=tracing,
    )
    app = web.Application(client_max_size=settings.max_body)
    app.add_routes(slack.routes())
    return app


def _without_payload(record: logging.LogRecord) -> bool:
    """Keeps what garbled HTTP carried out of the logs: aiohttp would quote it, with a stack trace."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.exc_info = None
        record.levelno, record.levelname = logging.INFO, "INFO"
        record.msg, record.args = "garbled HTTP: %s", (type(error).__name__,)
    return True
