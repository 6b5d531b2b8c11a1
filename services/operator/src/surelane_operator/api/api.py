"""The operator's API ``/v1``: its endpoints, its OpenAPI document, and what answers where it is off."""

from functools import cache
from typing import Any

from aiohttp import web

from surelane import __version__
from surelane_operator.api.bulk import BulkApi
from surelane_operator.api.endpoint import document, endpoints_of
from surelane_operator.api.queue import QueueApi
from surelane_operator.api.routes import route_of
from surelane_operator.api.stream import StreamApi
from surelane_operator.changes import Changes
from surelane_operator.console.access.guard import refusal
from surelane_operator.doctor import Examinations

OFF = {
    "/v1": "the operator's API is off; set SURELANE_API_TOKEN to switch it on",
    "/console": "the operator's page is off; set SURELANE_CONSOLE_SIGN_IN to switch it on",
    "/mcp": "the tools for assistants are off; set SURELANE_MCP and SURELANE_API_TOKEN to switch them on",
}
"""What answers say below each path that is switched off."""


def switched_off(path: str) -> list[web.AbstractRouteDef]:
    """Return the routes of a path of :data:`OFF`, which answer 404 and say how to switch it on."""

    async def answer(_: web.Request) -> web.Response:
        return refusal(404, OFF[path])

    return [web.route("*", path, answer), web.route("*", path + "/{rest:.*}", answer)]


class OperatorApi:
    """The routes under ``/v1``. They stand behind the guard, which names the viewer of each request."""

    def __init__(self, changes: Changes, examinations: Examinations) -> None:
        self._bulk, self._stream = BulkApi(changes), StreamApi(changes)
        queue = QueueApi(changes, examinations)
        self.endpoints = [*endpoints_of(queue, self._bulk), *self._stream.endpoints()]
        """In the order in which their paths are matched."""

    async def close(self, _: web.Application) -> None:
        """Stop what goes on beside requests."""
        self._stream.close()
        await self._bulk.close()

    def document(self) -> dict[str, Any]:
        return document(self.endpoints, __version__)

    def routes(self) -> list[web.AbstractRouteDef]:
        """Return the routes, including that of the OpenAPI document, which the first request makes: in 0.3 s."""
        described = cache(self.document)

        async def openapi(_: web.Request) -> web.Response:
            return web.json_response(described())

        return [
            *(route_of(each) for each in self.endpoints),
            web.get("/v1/openapi.json", openapi),
        ]
