"""Send one signed request to the app, and name a failure in Slack's words.

The simulator signs with the public demo secret. It never has a real one, so it cannot act as Slack for a real app.
"""

import ssl
import time
from datetime import timedelta

import aiohttp
from slack_sdk.signature import SignatureVerifier

from surelane_dev.simulator.posting.delivery import PATH, Delivery, DeliveryAttempt
from surelane_service.service_settings import DEMO_SIGNING_SECRET

USER_AGENT = "Slackbot 1.0 (+https://api.slack.com/robots)"
MOST_REDIRECTS = 2


class Post:
    """Post to the app. Return errors of the app or the network instead of raising them."""

    def __init__(self, ingest_url: str, timeout: timedelta, *, posting: bool = True) -> None:
        self._ingest_url = ingest_url
        self._posting = posting
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout.total_seconds()))

    async def close(self) -> None:
        """Close the connections; may be called again."""
        await self._session.close()

    async def __call__(
        self, delivery: Delivery, retry_num: int = 0, retry_reason: str | None = None
    ) -> DeliveryAttempt:
        """Make one attempt. ``retry_num``: 0 for the first, then Slack's number. ``retry_reason``: in Slack's words."""
        if not self._posting:
            return DeliveryAttempt(time.time(), 0, retry_num, retry_reason, None, "posting_is_off")
        headers = self._headers(delivery, retry_num, retry_reason)
        at, started = time.time(), time.monotonic()
        status, problem, no_retry, answer = None, None, False, b""
        try:
            sending = self._session.post(
                self._ingest_url + PATH, data=delivery.body, headers=headers, max_redirects=MOST_REDIRECTS
            )
            async with sending as response:
                status, answer = response.status, await response.read()
                problem = None if status // 100 == 2 else "http_error"
                no_retry = status != 200 and response.headers.get("X-Slack-No-Retry") == "1"
        except Exception as error:  # noqa: BLE001 - Slack has a word for every failure, "unknown_error" being the last
            problem = _reason(error)
        took = time.monotonic() - started
        return DeliveryAttempt(at, took, retry_num, retry_reason, status, problem, no_retry, answer)

    def _headers(self, delivery: Delivery, retry_num: int, retry_reason: str | None) -> dict[str, str]:
        headers = {"Content-Type": delivery.content_type, "User-Agent": USER_AGENT, "Accept": "*/*"}
        headers |= signed_headers(DEMO_SIGNING_SECRET, delivery.body, int(time.time()))
        if retry_num:
            headers["X-Slack-Retry-Num"] = str(retry_num)
            headers["X-Slack-Retry-Reason"] = retry_reason or "unknown_error"
        return headers


def signed_headers(secret: str, body: bytes, timestamp: int) -> dict[str, str]:
    """Return the two headers that prove that a request with this body comes from Slack.

    ``timestamp``: seconds since the epoch. The receiver refuses a time more than 300 seconds off.
    """
    signature = SignatureVerifier(secret).generate_signature(timestamp=str(timestamp), body=body)
    return {"X-Slack-Request-Timestamp": str(timestamp), "X-Slack-Signature": str(signature)}


def _reason(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "http_timeout"
        case aiohttp.TooManyRedirects():
            return "too_many_redirects"
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return "ssl_error"
        case aiohttp.ClientConnectionError() | OSError():
            return "connection_failed"
    return "unknown_error"
