"""The private port of every service: ``/livez``, ``/readyz`` and ``/metrics``. Never published."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from surelane.errors import SettingsError

LARGEST_BODY = 4 * 1024 * 1024
"""Bytes of a request's body at most: ten thousand subtasks fit."""

Unready = Callable[[], Awaitable[str | None]]
"""Answers why the service cannot take work now, or ``None`` when it can."""


def private_app(unready: Unready, routes: Iterable[web.AbstractRouteDef] = ()) -> web.Application:
    """The application behind the private port.

    ``/livez`` answers as long as the event loop turns and never touches the database; ``/readyz`` asks ``unready``.
    ``routes`` are served beside them.
    """

    async def livez(_: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    async def readyz(_: web.Request) -> web.Response:
        reason = await unready()
        if reason is None:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "not ready", "reason": reason}, status=503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application(client_max_size=LARGEST_BODY)
    app.add_routes([web.get("/livez", livez), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    app.add_routes(routes)
    return app


@asynccontextmanager
async def serving(
    app: web.Application,
    port: int,
    *,
    setting: str,
    host: str,
    **options: Any,  # noqa: ANN401 - passed on to aiohttp
) -> AsyncIterator[int]:
    """Serves ``app`` on ``port`` (0: any free one) for the length of the block; yields the port.

    ``options`` are aiohttp's ``AppRunner``'s: requests may take ``shutdown_timeout`` (30 s) to finish at the end.

    Raises:
        SettingsError: the port is taken; the message names it and ``setting``, the variable that moves it.
    """
    runner = web.AppRunner(app, access_log=None, handle_signals=False, **{"shutdown_timeout": 30, **options})
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, reuse_address=True)
        try:
            await site.start()
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; set {setting} to a free port"
            ) from None
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
