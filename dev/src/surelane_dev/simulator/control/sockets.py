"""Show the connections of Socket Mode, and disconnect the app on demand."""

from datetime import timedelta

from aiohttp import web
from pydantic import Field

from surelane_dev.simulator.control.inputs import SIMULATOR, Input, body_of
from surelane_dev.simulator.posting.sockets import Reason
from surelane_service.durations import Duration


class DisconnectInput(Input):
    """A disconnect of all connections."""

    reason: Reason | None = "refresh_requested"
    """What the app is told, a second before the end; ``null``: connections break without a word."""
    every: Duration | None = Field(default=None, ge=timedelta(milliseconds=100))
    """The time between two disconnects; ``null``: just this one, which also ends repeated ones."""


async def show(request: web.Request) -> web.Response:
    """Show whether the app uses Socket Mode, and how many connections it has."""
    return web.json_response(request.app[SIMULATOR].sockets.json())


async def disconnect(request: web.Request) -> web.Response:
    """Disconnect the app."""
    asked = await body_of(request, DisconnectInput)
    ended = request.app[SIMULATOR].sockets.disconnect(asked.reason, asked.every)
    return web.json_response({"disconnected": ended})


ROUTES = [web.get("/control/sockets", show), web.post("/control/sockets/disconnect", disconnect)]
