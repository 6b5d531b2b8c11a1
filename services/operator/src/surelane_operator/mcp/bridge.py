"""Answer a request of aiohttp's by an ASGI application: the protocol's SDK is one.

Only what the SDK needs is here: one request, one answer that is not streamed, no WebSocket and no lifespan.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from aiohttp import hdrs, web

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


async def answered(
    application: Application, request: web.Request, state: Mapping[str, Any]
) -> web.StreamResponse:
    """Return the application's answer. It finds ``state`` in the request's.

    The body is read as the application asks for it. So a large one is refused before it is read.
    """
    response = web.Response(status=500)
    body = bytearray()
    is_read = False

    async def receive() -> Message:
        nonlocal is_read
        if is_read:
            # The next message would say that the client went away.
            await asyncio.get_running_loop().create_future()
        chunk = await request.content.readany()
        is_read = not chunk
        return {"type": "http.request", "body": chunk, "more_body": not is_read}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            response.set_status(message["status"])
            for name, value in message.get("headers", ()):
                response.headers.add(name.decode("latin-1"), value.decode("latin-1"))
        else:
            body.extend(message.get("body", b""))

    await application(_scope(request, state), receive, send)
    # aiohttp writes the length itself.
    response.headers.popall(hdrs.CONTENT_LENGTH, None)
    response.body = bytes(body)
    return response


def _scope(request: web.Request, state: Mapping[str, Any]) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": f"{request.version.major}.{request.version.minor}",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.rel_url.raw_path.encode(),
        "query_string": request.rel_url.raw_query_string.encode(),
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.raw_headers],
        "client": None,
        "server": None,
        "state": dict(state),
    }
