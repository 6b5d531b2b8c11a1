"""Make the requests of an HTTP session to Slack's Web API wait for Slack's limits."""

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from hashlib import sha256
from http import HTTPStatus
from urllib.parse import parse_qsl

from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse
from aiohttp.hdrs import AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER
from aiohttp.payload import Payload
from yarl import URL

from surelane_worker.slack.limiter import Limiter

check_after_wait: ContextVar[Callable[[], Awaitable[None]]] = ContextVar("check_after_wait")
"""Awaited when a call's turn has come. If the claim was lost meanwhile, it cancels the handler and its call."""

LONGEST_DELAY = 3600.0
"""Most seconds for which a 429 delays all calls of a limit."""


def admitting(limiter: Limiter, api: URL) -> ClientMiddlewareType:
    """Return a middleware that makes an HTTP session keep Slack's limits, in all its clients, pages and retries.

    Slack's limits are per app and workspace. A bot's token stands for both, so a digest of the token names the
    workspace. The digest does not reveal the token.

    Args:
        limiter: admits the calls.
        api: the Web API's address. Requests elsewhere are sent at once.
    """

    async def admit(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        if request.url.origin() != api.origin() or not request.url.path.startswith(api.path):
            return await send(request)
        method = request.url.path.removeprefix(api.path)
        workspace = sha256(request.headers.get(AUTHORIZATION, "").encode()).hexdigest()[:16]
        channel = await _channel(request) if limiter.has_channels(method) else None
        await limiter.admit(workspace, method, channel)
        if check := check_after_wait.get(None):
            await check()
        response = await send(request)
        if response.status == HTTPStatus.TOO_MANY_REQUESTS:
            limiter.refused(workspace, method, channel, _seconds(response.headers.get(RETRY_AFTER)))
        return response

    return admit


async def _channel(request: ClientRequest) -> str | None:
    """Return the channel that a call names in its URL or its body."""
    given: Mapping[str, object] = request.url.query
    body = await request.body.as_bytes() if isinstance(request.body, Payload) else request.body
    match request.headers.get(CONTENT_TYPE, "").partition(";")[0]:
        case "application/json":
            with suppress(ValueError):
                parsed = json.loads(body)
                given = {**given, **parsed} if isinstance(parsed, dict) else given
        case "application/x-www-form-urlencoded":
            given = {**given, **dict(parse_qsl(body.decode(errors="replace")))}
    channel = given.get("channel") or given.get("channel_id")
    return channel if isinstance(channel, str) else None


def _seconds(retry_after: str | None) -> float:
    """Return the seconds of a Retry-After header; 1 if it cannot be read."""
    try:
        return min(max(float(retry_after or 1), 0.0), LONGEST_DELAY)
    except ValueError:
        return 1.0
