"""Build ingest from its settings, run it, and stop it in the order that loses nothing."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta

import aiohttp
from aiohttp import web
from pydantic import SecretStr

from surelane import __version__
from surelane.calls import Pool
from surelane.encryption.data_keys import DataKeys
from surelane.encryption.sealing import Sealing
from surelane_ingest.answers import PATIENCE, Answers, Patience
from surelane_ingest.app import App, Bodies, Drain
from surelane_ingest.connections import Connections
from surelane_ingest.envelope import Subscriptions
from surelane_ingest.installing import SLACK_WITHIN, Installer
from surelane_ingest.limits import Refusals, server_options
from surelane_ingest.links import Links
from surelane_ingest.metrics import Metrics
from surelane_ingest.settings import IngestSettings
from surelane_ingest.slack import PATHS, SWITCHED_OFF, Signatures, slack_urls
from surelane_ingest.socket_mode import socket_mode
from surelane_ingest.taking import Taker
from surelane_ingest.tracing import traced
from surelane_ingest.webhooks import CONNECTIONS as WEBHOOK_CONNECTIONS
from surelane_ingest.webhooks import AnswerUrl, TriggerUrl, Turns
from surelane_ingest.writer import FLUSHERS, Writer
from surelane_operator.serving import Operators, load_protocol, serving_operators
from surelane_service.intake import Intake
from surelane_service.logs import configure_logs, get_logger
from surelane_service.pool import close_pool, create_pool
from surelane_service.probes import PRIVATE_CONNECTIONS, ConnectionLimit, private_app, serving
from surelane_service.settings import load_settings
from surelane_service.telemetry.setup import configure_telemetry
from surelane_service.telemetry.tracer import Tracer
from surelane_service.watch import Watch

SERVICE = "surelane-ingest"
CONNECTIONS = FLUSHERS + 1 + WEBHOOK_CONNECTIONS
"""One connection per flusher, one for the readiness probe, and those of webhooks and remote agents' answers."""
_logger = get_logger(__name__)


@dataclass(frozen=True)
class Ingest:
    """A running service: its ports, its writer and bodies, and the switch that starts the drain."""

    port: int
    private_port: int
    writer: Writer
    bodies: Bodies
    drain: Drain


async def main(stop: asyncio.Event) -> None:
    """Run the service until ``stop`` is set, then finish the requests it took."""
    settings = load_settings(IngestSettings)
    configure_logs(SERVICE, settings.log_level)
    telemetry = configure_telemetry(SERVICE, __version__)
    load_protocol(settings)
    # Freeze imported objects: a full collection would stall every request for about 30 ms, about once per second.
    gc.collect()
    gc.freeze()
    try:
        async with running(settings, telemetry.tracer) as ingest:
            if settings.app_token is None and not settings.signing_secrets:
                _logger.warning("nothing from Slack is taken: no SLACK_APP_TOKEN, no SLACK_SIGNING_SECRET")
            _logger.info("taking events", port=ingest.port, private_port=ingest.private_port)
            await stop.wait()
        _logger.info("stopped")
    finally:
        await asyncio.to_thread(telemetry.shutdown)


@asynccontextmanager
async def running(
    settings: IngestSettings,
    tracer: Tracer | None = None,
    *,
    measured: bool = True,
    patience: Patience = PATIENCE,
) -> AsyncIterator[Ingest]:
    """Run the service for the length of the block.

    At its end the public port closes first, and its requests finish within the drain timeout. Then the writer ends.
    The private port ends last; until then ``/readyz`` answers that the service is not ready.

    Args:
        settings, tracer: what to run it with.
        measured: whether to publish the queue's figures.
        patience: how long requests wait for their answers.

    Raises:
        SettingsError: a port is taken, or the database's URL is not one.
    """
    bodies, drain = Bodies(settings.max_body, settings.body_memory), Drain()
    counted: list[Metrics] = []  # the operator's page is served before the writer is there, and after it
    links = None if settings.app_token is None else Links()
    async with (
        _connections(settings) as connections,
        serving_operators(settings, SERVICE, lambda: counted[0].received() if counted else {}) as operators,
        _watching(settings) if measured else nullcontext(),
        _serving_private(settings, connections, drain, links, operators) as private_port,
        Writer(connections, buffer=settings.buffer) as writer,
        _sealing(settings) as sealing,
        _answers(settings, patience, sealing) as answers,
        _installer(settings, drain, writer) as installer,
        nullcontext(Taker(writer, answers, tracer, installer, sealing)) as taker,
        _serving_public(
            settings, bodies, connections, writer, taker, drain, tracer, installer, sealing
        ) as port,
        nullcontext()
        if links is None
        else socket_mode(settings, taker, bodies=bodies, links=links, drain=drain),
    ):
        counted.append(writer.metrics)
        try:
            yield Ingest(port, private_port, writer, bodies, drain)
        finally:
            drain.started = True


@asynccontextmanager
async def _pool(
    url: SecretStr,
    max_size: int,
    *,
    service: str = SERVICE,
    statement_timeout: timedelta,
    connect_timeout: timedelta = timedelta(seconds=5),
) -> AsyncIterator[Pool]:
    pool = await create_pool(
        url.get_secret_value(),
        service=service,
        max_size=max_size,
        statement_timeout=statement_timeout,
        connect_timeout=connect_timeout,
    )
    try:
        yield pool
    finally:
        await close_pool(pool)


@asynccontextmanager
async def _connections(settings: IngestSettings) -> AsyncIterator[Connections]:
    budget = settings.database_budget
    async with _pool(
        settings.database_url, CONNECTIONS, statement_timeout=budget, connect_timeout=budget
    ) as pool:
        yield Connections(pool, budget)


@asynccontextmanager
async def _sealing(settings: IngestSettings) -> AsyncIterator[Sealing | None]:
    """Yield what encrypts and decrypts, with a connection of its own; ``None`` without keys."""
    keys = settings.encryption_keys
    if keys is None:
        yield None
        return
    budget = settings.database_budget
    async with _pool(settings.database_url, 1, statement_timeout=budget, connect_timeout=budget) as pool:
        yield Sealing(DataKeys(pool, keys), on=settings.encrypt_events)


@asynccontextmanager
async def _answers(
    settings: IngestSettings, patience: Patience, sealing: Sealing | None
) -> AsyncIterator[Answers]:
    budget = settings.database_budget
    async with (
        _pool(settings.database_url, 1, statement_timeout=budget, connect_timeout=budget) as pool,
        Answers(
            Connections(pool, budget),
            most=max(settings.connections // 2, 1),
            patience=patience,
            sealing=sealing,
        ) as answers,
    ):
        yield answers


@asynccontextmanager
async def _installer(
    settings: IngestSettings, drain: Drain, writer: Writer
) -> AsyncIterator[Installer | None]:
    """Yield what installs the app by OAuth, with connections of its own; ``None`` where installs are off."""
    keys = settings.encryption_keys
    if not settings.installs or keys is None:
        yield None
        return
    budget = settings.database_budget
    async with (
        _pool(settings.database_url, 2, statement_timeout=budget, connect_timeout=budget) as pool,
        aiohttp.ClientSession(timeout=SLACK_WITHIN) as session,
    ):
        yield Installer(settings, keys, Connections(pool, budget), session, drain, writer.metrics)


@asynccontextmanager
async def _watching(settings: IngestSettings) -> AsyncIterator[None]:
    """Publish the queue's figures. Measuring may take longer than Slack waits, so it has its own connection."""
    async with _pool(settings.database_url, 1, statement_timeout=timedelta(seconds=30)) as pool:
        watch = Watch(Intake(pool))
        watch.publish()
        task = asyncio.create_task(watch.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


def _serving_private(
    settings: IngestSettings,
    connections: Connections,
    drain: Drain,
    links: Links | None,
    operators: Operators,
) -> AbstractAsyncContextManager[int]:
    async def unready() -> str | None:
        if drain.started:
            return "stopping"
        return await connections.unready() or (None if links is None else links.unready())

    app = private_app(unready, operators.routes, settings.known_hosts, operators.middlewares)
    app.on_shutdown.append(operators.shut_down)
    return serving(
        app,
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
    taker: Taker,
    drain: Drain,
    tracer: Tracer | None,
    installer: Installer | None,
    sealing: Sealing | None,
) -> AsyncIterator[int]:
    signed = settings.signing_secrets
    subscriptions = Subscriptions(settings.event_types, merge_mentions=settings.merge_mentions)
    refusals, limit, call = Refusals(), ConnectionLimit(settings.connections), Turns(connections)
    app = App(
        [
            *(slack_urls(Signatures(settings.signing_secrets), subscriptions, taker) if signed else ()),
            TriggerUrl(settings.trigger_secrets, call, writer.metrics, tracer, sealing),
            AnswerUrl(settings.dispatch_secrets, call, sealing),
        ],
        bodies=bodies,
        metrics=writer.metrics,
        drain=drain,
        refusals=refusals,
        connections=limit,
        off={} if signed else dict.fromkeys(PATHS, SWITCHED_OFF),
    )
    public = web.Application(client_max_size=settings.max_body)
    if installer is not None:
        public.add_routes(installer.routes())
    public.add_routes(traced(tracer, app.routes()) if tracer else app.routes())
    options = server_options(settings.drain_timeout, refusals)
    serve = serving(
        public, settings.port, setting="SURELANE_PORT", host=settings.host, limit=limit, **options
    )
    try:
        async with serve as port:
            yield port
    finally:
        refusals.close()
