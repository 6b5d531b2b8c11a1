"""Endpoints as routes of HTTP: a request is read, its endpoint called, and its answer or refusal sent."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from pydantic import BaseModel

from surelane_operator.api.endpoint import TOO_LARGE, CallRefused, Endpoint
from surelane_operator.console.access.guard import refusal
from surelane_operator.console.access.viewer import EVENT_STREAM, viewer_of


def route_of(endpoint: Endpoint) -> web.RouteDef:
    """Return the route that answers for an endpoint, also what refuses a request."""
    answering = endpoint.answer if isinstance(endpoint, StreamEndpoint) else _answering(endpoint)

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await answering(request)
        except CallRefused as refused:
            return refusal(refused.status, refused.error, refused.headers)

    return web.route(endpoint.method, endpoint.path, answer)


def _answering(endpoint: Endpoint) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        given: dict[str, object] = {"path": dict(request.match_info), "query": dict(request.query)}
        viewer = viewer_of(request)
        if "body" in endpoint.parts and viewer.may(endpoint.role):
            try:
                given["body"] = await request.read() or endpoint.no_body
            except web.HTTPRequestEntityTooLarge:
                raise CallRefused(413, TOO_LARGE) from None
        found = await endpoint.call(viewer, given)
        if found is None:
            return web.Response(status=endpoint.status)
        return web.Response(
            text=found.model_dump_json(), status=endpoint.status, content_type="application/json"
        )

    return answer


class StreamEndpoint(Endpoint):
    """A read whose answer ``send`` streams, from ``after`` or the header ``Last-Event-ID`` on, which browsers send."""

    streams = True

    def __init__(
        self,
        path: str,
        call: Callable[..., Awaitable[BaseModel | None]],
        send: Callable[[web.Request, Any], Awaitable[web.StreamResponse]],
        **more: Any,  # noqa: ANN401 - those of an endpoint
    ) -> None:
        super().__init__("GET", path, call, **more)
        self._send = send

    async def answer(self, request: web.Request) -> web.StreamResponse:
        latest = request.headers.get("Last-Event-ID")
        query = dict(request.query) | ({"after": latest} if latest else {})
        found = await self.call(viewer_of(request), {"path": dict(request.match_info), "query": query})
        return await self._send(request, found)

    def models(self) -> list[type[BaseModel]]:
        return []

    def described(self) -> dict[str, Any]:
        described = super().described()
        content = {EVENT_STREAM: {"schema": {"type": "string"}}}
        described["responses"]["200"] = {"description": "server-sent events", "content": content}
        return described


def server_sent(sort: str, data: object) -> bytes:
    """Format a server-sent event. JSON has no line breaks, which would end its field."""
    return f"event: {sort}\ndata: {json.dumps(data)}\n\n".encode()
