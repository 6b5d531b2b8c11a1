"""Builds the service from its settings, and takes it down in the order that loses nothing."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from aiohttp import web

from surelane import __version__
from surelane_ingest.app import Drain, SlackApp
from surelane_ingest.body import Bodies
from surelane_ingest.connections import Connections
from surelane_ingest.http_server import server_options
from surelane_ingest.readiness import Readiness
from surelane_ingest.refusals import Refusals
from surelane_ingest.settings import IngestSettings
from surelane_ingest.signature import Signatures
from surelane_ingest.subscriptions import Subscriptions
from surelane_ingest.tracing import traced
from surelane_ingest.triggers import CONNECTIONS as TRIGGER_CONNECTIONS
from surelane_ingest.triggers import TriggersApp
from surelane_ingest.writer import FLUSHERS, Writer
from surelane_operator.api.api import OperatorApi, routes_switched_off
from surelane_service.intake import Intake
from surelane_service.logs import configure_logs, get_logger
from surelane_service.pool import close_pool, create_pool
from surelane_service.probes import PRIVATE_CONNECTIONS, ConnectionLimit, private_app, serving
from surelane_service.settings import load_settings
from surelane_service.telemetry.setup import configure_telemetry
from surelane_service.telemetry.spans import Tracer
from surelane_service.watch import Watch

SERVICE = "surelane-ingest"
CONNECTIONS = FLUSHERS + 1 + TRIGGER_CONNECTIONS
"""One a flusher, one for the readiness probe, and those of webhooks and remote agents' answers."""
_logger = get_logger(__name__)


@dataclass(frozen=True)
class Ingest:
    """A running service: its ports, what it holds, and the switch that starts the drain."""

    port: int
    private_port: int
    writer: Writer
    bodies: Bodies
    drain: Drain


async def main(stop: asyncio.Event) -> None:
    """Runs the service until ``stop`` is set, then finishes what it took."""
    settings = load_settings(IngestSettings)
    configure_logs(SERVICE, settings.log_level)
    telemetry = configure_telemetry(SERVICE, __version__)
    # What was imported stays for ever. The garbage collector would go through it every second, for 30 ms that all wait.
    gc.collect()
    gc.freeze()
    try:
        async with running(settings, telemetry.tracer) as ingest:
            _logger.info("taking events", port=ingest.port, private_port=ingest.private_port)
            await stop.wait()
        _logger.info("stopped")
    finally:
        await asyncio.to_thread(telemetry.shutdown)


@asynccontextmanager
async def running(settings: IngestSettings, tracer: Tracer | None = None) -> AsyncIterator[Ingest]:
    """Runs the service for the length of the block.

    At its end the public port closes first and its requests finish, within the drain timeout; then the writer
    ends, then the private port, which says until then that the service is not ready.

    Raises:
        SettingsError: a port is taken, or the database's URL is not one.
    """
    bodies, drain = Bodies(settings.max_body, settings.body_memory), Drain()
    async with (
        _connections(settings) as connections,
        _operator_routes(settings) as operator_routes,
        _watching(settings),
        _serving_private(settings, connections, drain, operator_routes) as private_port,
        Writer(connections, budget=settings.database_budget, buffer=settings.buffer) as writer,
        _serving_public(settings, bodies, connections, writer, drain, tracer) as port,
    ):
        try:
            yield Ingest(port, private_port, writer, bodies, drain)
        finally:
            drain.started = True


@asynccontextmanager
async def _connections(settings: IngestSettings) -> AsyncIterator[Connections]:
    pool = await create_pool(
        settings.database_url.get_secret_value(),
        service=SERVICE,
        max_size=CONNECTIONS,
        statement_timeout=settings.database_budget,
        connect_timeout=settings.database_budget,
    )
    try:
        yield Connections(pool, settings.database_budget)
    finally:
        await close_pool(pool)


@asynccontextmanager
async def _operator_routes(settings: IngestSettings) -> AsyncIterator[list[web.AbstractRouteDef]]:
    """The operator's API, where a token is set; it has connections of its own, so that it cannot hold up Slack."""
    if settings.api_token is None:
        yield routes_switched_off()
        return
    pool = await create_pool(
        (settings.operator_database_url or settings.database_url).get_secret_value(),
        service=f"{SERVICE}-api",
        max_size=2,
        statement_timeout=timedelta(seconds=15),
    )
    try:
        yield OperatorApi(pool, settings.api_token.get_secret_value()).routes()
    finally:
        await close_pool(pool)


@asynccontextmanager
async def _watching(settings: IngestSettings) -> AsyncIterator[None]:
    """Shows the queue's figures; on a connection of its own, as measuring may take longer than Slack can wait."""
    pool = await create_pool(
        settings.database_url.get_secret_value(),
        service=SERVICE,
        max_size=1,
        statement_timeout=timedelta(seconds=30),
    )
    watch = Watch(Intake(pool))
    watch.publish()
    running = asyncio.create_task(watch.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])
        await close_pool(pool)


def _serving_private(
    settings: IngestSettings,
    connections: Connections,
    drain: Drain,
    operator_routes: list[web.AbstractRouteDef],
) -> AbstractAsyncContextManager[int]:
    readiness = Readiness(connections, lambda: drain.started, settings.database_budget)
    return serving(
        private_app(readiness.unready, operator_routes, settings.api_hosts),
        settings.private_port,
        setting="SURELANE_PRIVATE_PORT",
        host=settings.private_address,
        limit=ConnectionLimit(PRIVATE_CONNECTIONS),
    )


@asynccontextmanager
async def _serving_public(
    settings: IngestSettings,
    bodies: Bodies,
    connections: Connections,
    writer: Writer,
    drain: Drain,
    tracer: Tracer | None,
) -> AsyncIterator[int]:
    refusals, limit = Refusals(), ConnectionLimit(settings.connections)
    slack = SlackApp(
        signatures=Signatures(settings.signing_secrets),
        subscriptions=Subscriptions(settings.event_types),
        bodies=bodies,
        writer=writer,
        drain=drain,
        refusals=refusals,
        connections=limit,
        tracer=tracer,
    )
    triggers = TriggersApp(
        triggers=settings.trigger_secrets,
        dispatch=settings.dispatch_secrets,
        bodies=bodies,
        database=connections,
        budget=settings.database_budget,
        metrics=writer.metrics,
        drain=drain,
        refusals=refusals,
        connections=limit,
        tracer=tracer,
    )
    app = web.Application(client_max_size=settings.max_body)
    routes = [*triggers.routes(), *slack.routes()]
    app.add_routes(traced(tracer, routes) if tracer else routes)
    options = server_options(settings.drain_timeout, refusals)
    serve = serving(app, settings.port, setting="SURELANE_PORT", host=settings.host, limit=limit, **options)
    try:
        async with serve as port:
            yield port
    finally:
        refusals.close()
