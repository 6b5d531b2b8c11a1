"""The Web API client: one HTTP session, retried as Slack asks, traced without secrets."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

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

RATE_LIMIT_RETRIES = 10
"""Each waits as long as Slack asks; the lease is renewed meanwhile."""


@asynccontextmanager
async def slack_client(settings: WorkerSettings, *, traced: bool) -> AsyncIterator[AsyncWebClient]:
    """Slack's Web API for the length of the block."""
    api = settings.slack_api_url.rstrip("/") + "/"
    traces = [create_trace_config(url_filter=without_secrets(api))] if traced else []
    async with aiohttp.ClientSession(trace_configs=traces) as session:
        yield AsyncWebClient(
            token=settings.bot_token,
            base_url=api,
            session=session,
            retry_handlers=[
                AsyncConnectionErrorRetryHandler(max_retry_count=2),
                AsyncServerErrorRetryHandler(max_retry_count=2),
                AsyncRateLimitErrorRetryHandler(max_retry_count=RATE_LIMIT_RETRIES),
            ],
        )


def without_secrets(api: str) -> Callable[[yarl.URL], str]:
    """What spans show of a URL: no query, and of anything but the API no path, as a ``response_url`` is a secret."""

    def shown(url: yarl.URL) -> str:
        plain = url.with_query(None).with_fragment(None).with_user(None)
        return str(plain) if str(plain).startswith(api) else str(plain.origin())

    return shown
