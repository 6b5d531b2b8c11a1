"""Build ingest from its settings, run it, and stop it in the order that loses nothing."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta

import aiohttp
from aiohttp import web

from surelane import __version__
from surelane.calls import Pool
from surelane.codec import Codec, codec_of
from surelane_ingest.answers import PATIENCE, AnswerWaits, Patience
from surelane_ingest.app import App, Bodies, Refusals, server_options, traced
from surelane_ingest.dropped import Notes
from surelane_ingest.envelope import Subscriptions
from surelane_ingest.ingest_settings import IngestSettings
from surelane_ingest.installing import SLACK_WITHIN, Installer
from surelane_ingest.slack import PATHS, SWITCHED_OFF, Signatures, slack_urls
from surelane_ingest.socket_mode import Shared, SocketLinks, socket_mode
from surelane_ingest.taking import Loops, Taker
from surelane_ingest.webhooks import CONNECTIONS as WEBHOOK_CONNECTIONS
from surelane_ingest.webhooks import AnswerUrl, TriggerUrl, Turns
from surelane_ingest.writer import FLUSHERS, MAX_BATCH, Connections, Writer
from surelane_service.installations import Installations
from surelane_service.intake import Intake
from surelane_service.logs import configure_logs, get_logger
from surelane_service.pool import Listener, opened_pool
from surelane_service.probes import ConnectionLimit, private_app, serving, serving_private, tell_https
from surelane_service.service_settings import load_settings, warn_of_misspelled, warn_of_unverified
from surelane_service.telemetry.setup import configure_telemetry
from surelane_service.telemetry.spans import Tracer
from surelane_service.watch import Watch

SERVICE = "surelane-ingest"
CONNECTIONS = FLUSHERS + 1 + WEBHOOK_CONNECTIONS
"""One connection per flusher, one for the readiness probe, and those of webhooks and remote agents' answers."""
YOUNG = 10_000
"""Objects that may be made before a collection looks for cycles among them.

By default they are 700, fewer than the requests of a batch make. Storing an event took 6 % more CPU time so.
"""
_logger = get_logger(__name__)


@dataclass(frozen=True)
class Ingest:
    """A running service: its ports, its writer and bodies, and the switch that starts the drain."""

    port: int
    private_port: int
    writer: Writer
    bodies: Bodies
    drain: asyncio.Event


async def main(stop: asyncio.Event) -> None:
    """Run the service until ``stop`` is set, then finish the requests it took."""
    settings = load_settings(IngestSettings)
    configure_logs(SERVICE, settings.log_level)
    warn_of_misspelled(IngestSettings)
    warn_of_unverified(settings.database_url)
    telemetry = configure_telemetry(SERVICE, __version__)
    # Freeze imported objects: a full collection would stall every request for about 30 ms, about once per second.
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
    try:
        async with running(settings, telemetry.tracer) as ingest:
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
    """Run the service for the length of the block. ``measured``: it publishes the queue's figures.

    At its end the public port closes first, and its requests finish within the drain timeout. Then the writer ends.
    The private port ends last; until then ``/readyz`` answers that the service is not ready.

    Raises:
        SettingsError: a port is taken, or the database's URL is not one.
    """
    bodies, drain = Bodies(settings.max_body, settings.body_memory), asyncio.Event()
    url = settings.database_url.get_secret_value()
    listener = Listener(url, service=SERVICE, within=settings.database_budget)
    links = None if settings.app_token is None else SocketLinks()
    subscriptions = Subscriptions(
        settings.event_types,
        merge_mentions=settings.merge_mentions,
        own=settings.own_events,
        bots=settings.bot_messages,
    )
    async with (
        _pool(settings, CONNECTIONS) as pool,
        nullcontext(Connections(pool, settings.database_budget)) as connections,
        _watching(settings) if measured else nullcontext(),
        _serving_private(settings, connections, drain, links) as private_port,
        Writer(connections, buffer=settings.buffer) as writer,
        _pool(settings, 1) as looks,
        Notes(looks, settings.database_budget, busy=lambda: writer.waiting >= MAX_BATCH) as notes,
        nullcontext(codec_of(settings.encryption_keys, looks, on=settings.encrypt_events)) as codec,
        AnswerWaits(listener, codec, most=max(settings.connections // 2, 1), patience=patience) as answers,
        _installer(settings, drain, writer, codec) as installer,
        nullcontext(
            Taker(writer, answers, tracer, installer, codec, notes, Loops(settings.loop_limit))
        ) as taker,
        _serving_public(settings, bodies, connections, taker, subscriptions, drain) as port,
        nullcontext()
        if links is None
        else socket_mode(settings, Shared(taker, subscriptions, bodies, links, Refusals(), drain), looks),
    ):
        try:
            yield Ingest(port, private_port, writer, bodies, drain)
        finally:
            drain.set()


def _pool(settings: IngestSettings, size: int) -> AbstractAsyncContextManager[Pool]:
    within = dict.fromkeys(("statement_timeout", "connect_timeout"), settings.database_budget)
    return opened_pool(settings.database_url, service=SERVICE, max_size=size, **within)


@asynccontextmanager
async def _installer(
    settings: IngestSettings, drain: asyncio.Event, writer: Writer, codec: Codec
) -> AsyncIterator[Installer | None]:
    """Yield what installs the app by OAuth, with connections of its own; ``None`` where installs are off."""
    keys = settings.encryption_keys
    if not settings.installs or keys is None:
        yield None
        return
    async with _pool(settings, 2) as pool, aiohttp.ClientSession(timeout=SLACK_WITHIN) as session:
        installations = Installations(pool, keys)
        yield Installer(settings, keys, installations, codec, session, drain, writer.metrics)


@asynccontextmanager
async def _watching(settings: IngestSettings) -> AsyncIterator[None]:
    """Publish the queue's figures. Measuring may take longer than Slack waits, so it has its own connection."""
    patient = timedelta(seconds=30)
    async with opened_pool(
        settings.database_url, service=SERVICE, max_size=1, statement_timeout=patient
    ) as pool:
        watch = Watch(Intake(pool).figures)
        watch.publish()
        task = asyncio.create_task(watch.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


def _serving_private(
    settings: IngestSettings, connections: Connections, drain: asyncio.Event, links: SocketLinks | None
) -> AbstractAsyncContextManager[int]:
    async def unready() -> str | None:
        if drain.is_set():
            return "stopping"
        return await connections.unready() or (None if links is None else links.unready())

    return serving_private(private_app(unready), settings)


@asynccontextmanager
async def _serving_public(
    settings: IngestSettings,
    bodies: Bodies,
    connections: Connections,
    taker: Taker,
    subscriptions: Subscriptions,
    drain: asyncio.Event,
) -> AsyncIterator[int]:
    signed, metrics, noted = settings.signing_secrets, taker.writer.metrics, taker.notes.refused
    tracer, codec, installer = taker.tracer, taker.codec, taker.installer
    refusals, limit, call = Refusals(), ConnectionLimit(settings.connections), Turns(connections)
    app = App(
        [
            *(slack_urls(Signatures(signed), subscriptions, taker) if signed else ()),
            TriggerUrl(settings.trigger_secrets, call, metrics, tracer, codec, noted),
            AnswerUrl(settings.dispatch_secrets, call, codec, noted),
        ],
        bodies=bodies,
        metrics=metrics,
        drain=drain,
        refusals=refusals,
        connections=limit,
        off={} if signed else dict.fromkeys(PATHS, SWITCHED_OFF),
    )
    public = web.Application(client_max_size=settings.max_body)
    if settings.speaks_to_slack:  # it posts, and sends people who install, to https addresses alone
        public.on_response_prepare.append(tell_https)
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
