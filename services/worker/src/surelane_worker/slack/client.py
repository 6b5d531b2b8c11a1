"""The clients for Slack: the Web API's on one HTTP session, response URLs' on a guarded one. Spans show no secrets."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import yarl
from opentelemetry.instrumentation.aiohttp_client import create_trace_config
from slack_sdk.http_retry.builtin_async_handlers import (
    AsyncConnectionErrorRetryHandler,
    AsyncRateLimitErrorRetryHandler,
    AsyncServerErrorRetryHandler,
)
from slack_sdk.web.async_client import AsyncWebClient

from surelane_worker.settings import WorkerSettings
from surelane_worker.slack.response_url import ResponseUrls

RATE_LIMIT_RETRIES = 10
"""Each waits as long as Slack asks; the lease is renewed meanwhile."""

TIMEOUT = aiohttp.ClientTimeout(total=300, sock_connect=10, sock_read=30)
"""Seconds: a call waits for a free connection too, but no more than 30 for a Slack that says nothing."""


@dataclass(frozen=True, slots=True)
class SlackClients:
    """Two clients on one HTTP session, and the one for response URLs."""

    client: AsyncWebClient
    """Sends again after connection errors, 5xx answers and rate limits."""
    once: AsyncWebClient
    """Sends again only what Slack said it has not done: for what must not be said twice."""
    responses: ResponseUrls


@asynccontextmanager
async def slack_clients(settings: WorkerSettings, *, traced: bool) -> AsyncIterator[SlackClients]:
    """Slack's Web API for the length of the block."""
    api = settings.slack_api_url.rstrip("/") + "/"
    traces = [create_trace_config(url_filter=without_secrets(api))] if traced else []
    async with aiohttp.ClientSession(trace_configs=traces, timeout=TIMEOUT) as session:
        limited = AsyncRateLimitErrorRetryHandler(max_retry_count=RATE_LIMIT_RETRIES)
        broken = AsyncConnectionErrorRetryHandler(max_retry_count=2)
        failed = AsyncServerErrorRetryHandler(max_retry_count=2)
        token = settings.bot_token
        client = AsyncWebClient(token, api, session=session, retry_handlers=[broken, failed, limited])
        once = AsyncWebClient(token, api, session=session, retry_handlers=[limited])
        own = None if settings.speaks_to_slack else yarl.URL(api)
        responses = ResponseUrls(own, proxy=client.proxy, traces=traces)
        try:
            yield SlackClients(client, once, responses)
        finally:
            await responses.close()


def without_secrets(api: str) -> Callable[[yarl.URL], str]:
    """What spans show of a URL: no query, and of anything but the API no path, as a ``response_url`` is a secret."""

    def shown(url: yarl.URL) -> str:
        plain = url.with_query(None).with_fragment(None).with_user(None)
        return str(plain) if str(plain).startswith(api) else str(plain.origin())

    return shown
