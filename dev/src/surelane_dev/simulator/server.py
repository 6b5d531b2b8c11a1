"""Serve the simulator over HTTP: the page at ``/``, Slack's Web API, the control API, ``/livez`` and ``/readyz``."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from aiohttp import web

from surelane_dev.simulator import consent, fake_model, responses
from surelane_dev.simulator.callers import refuse_strangers
from surelane_dev.simulator.control.acts import SIMULATOR, explain_errors
from surelane_dev.simulator.control.routes import ROUTES
from surelane_dev.simulator.jobs import JobWatch
from surelane_dev.simulator.posting.first_install import installing_first
from surelane_dev.simulator.saved import SavedConversations
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.simulator_settings import FAKE_MODEL_PATH, SimulatorSettings, reached_at
from surelane_dev.simulator.webapi import apps
from surelane_service.logs import configure_logs, get_logger
from surelane_service.probes import serving
from surelane_service.service_settings import load_settings

PAGE = Path(__file__).parent / "page"
MAX_BODY = 32 * 1024 * 1024
POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self'; frame-ancestors 'none'; base-uri 'none'"


def simulator_app(simulator: Simulator) -> web.Application:
    strangers = refuse_strangers(simulator.settings.names)
    app = web.Application(middlewares=[strangers, explain_errors], client_max_size=MAX_BODY)
    app[SIMULATOR] = simulator
    app.add_routes(
        [
            web.get("/livez", _livez),
            web.get("/readyz", _readyz),
            web.get("/", _page),
            web.static("/page", PAGE),
            web.route("*", "/api/{method}", simulator.api.handle),
            web.post("/response/{key}", responses.respond),
            web.post("/upload/{key}", simulator.files.upload),
            web.get("/files/{id}/{name}", simulator.files.download),
            web.post(f"{FAKE_MODEL_PATH}/chat/completions", fake_model.complete),
            web.get(apps.PATH, simulator.sockets.serve),
            *consent.ROUTES,
            *ROUTES,
        ]
    )
    app.on_response_prepare.append(_guard)
    app.on_shutdown.append(_close)
    return app


async def main(stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set. Raises SettingsError: the settings cannot be used, or the port is taken."""
    settings = load_settings(SimulatorSettings)
    configure_logs("surelane-simulator", settings.log_level)
    async with serving_simulator(settings) as (url, _):
        get_logger("simulator").info("simulated Slack is ready", page=url, events_go_to=settings.ingest_url)
        await stop.wait()


@asynccontextmanager
async def serving_simulator(settings: SimulatorSettings) -> AsyncIterator[tuple[str, Simulator]]:
    """Serve a simulator for the length of the block; yield its address and the simulator."""
    simulator = Simulator(settings, settings.public_url or "")
    app, host = simulator_app(simulator), settings.host
    try:
        async with serving(app, settings.port, setting="SURELANE_SIMULATOR_PORT", host=host) as port:
            url = f"{reached_at(host)}:{port}"
            simulator.interactions.public_url = settings.public_url or url
            async with _background(simulator), _conversations(simulator), installing_first(simulator):
                yield url, simulator
    finally:
        await simulator.close()


@asynccontextmanager
async def _background(simulator: Simulator) -> AsyncIterator[None]:
    url = simulator.settings.queue_database_url
    if url is None:
        yield
        return
    watch = JobWatch(url, simulator.sender.deliveries, simulator.delivery_changed)
    task = asyncio.create_task(watch.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def _conversations(simulator: Simulator) -> AsyncIterator[None]:
    if simulator.settings.state is None:
        yield
        return
    async with SavedConversations(simulator.settings.state, simulator.installs, simulator.sessions).kept():
        yield


async def _livez(_: web.Request) -> web.Response:
    return web.json_response({"status": "alive"})


async def _readyz(request: web.Request) -> web.Response:
    reason = request.app[SIMULATOR].waits_for
    return web.json_response({"status": reason or "ready"}, status=503 if reason else 200)


async def _page(_: web.Request) -> web.FileResponse:
    return web.FileResponse(PAGE / "index.html")


async def _guard(request: web.Request, response: web.StreamResponse) -> None:
    if not request.path.startswith("/api/"):
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers.setdefault("Cache-Control", "no-cache")


async def _close(app: web.Application) -> None:
    await app[SIMULATOR].close()
