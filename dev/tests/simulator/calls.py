"""Call the simulated Web API."""

from collections.abc import Awaitable
from typing import Any

import aiohttp
import pytest
from slack_sdk.errors import SlackApiError

from tests.system.slack_app import Pair

ADA, BOT, GENERAL, LOUNGE = "U0ADA00001", "U0SURELANE", "C0GENERAL1", "C0LOUNGE01"
BEARER = {"Authorization": "Bearer xoxb-any"}


async def call(pair: Pair, method: str, **request: Any) -> dict[str, Any]:
    """Call a method; return the body. Every error but Slack's own failures has status 200."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{pair.url}/api/{method}", **({"headers": BEARER} | request)) as response,
    ):
        assert (response.status, response.content_type) == (200, "application/json")
        answer: dict[str, Any] = await response.json()
        return answer


async def refused(call: Awaitable[object]) -> dict[str, Any]:
    """Return the answer of a call that fails."""
    with pytest.raises(SlackApiError) as caught:
        await call
    answer: dict[str, Any] = caught.value.response.data
    return answer


async def failing(call: Awaitable[object]) -> str:
    """Return the error of a call that fails."""
    return str((await refused(call))["error"])


def plain(text: str) -> dict[str, str]:
    """Return a text object."""
    return {"type": "plain_text", "text": text}
