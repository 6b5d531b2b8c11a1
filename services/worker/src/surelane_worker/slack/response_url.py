"""Answers through a ``response_url``: posted to Slack's own hosts, or the simulator's, and nowhere else.

The URL comes out of an event's payload, so it proves nothing. slack-sdk's webhook client follows redirects and reads
answers of any size, and has no setting against either: the request is made here.
"""

import json
from typing import Any

import aiohttp
from slack_sdk.models import JsonObject
from yarl import URL

from surelane_service.outbound import Guard, Reply, guarded_session, post
from surelane_worker.slack.errors import ResponseUrlError

SLACK_ORIGINS = frozenset({URL("https://hooks.slack.com"), URL("https://hooks.slack-gov.com")})
"""Where Slack's response URLs lead."""
LONGEST = 2000
"""Characters of a URL at most; Slack's have about a hundred."""


class ResponseUrls:
    """Posts answers to response URLs."""

    def __init__(
        self, api: URL | None, *, proxy: str | None = None, traces: list[aiohttp.TraceConfig] | None = None
    ) -> None:
        """Opens no connection yet.

        Args:
            api: the Web API's address where it is not Slack's own; its origin may be posted to as well.
            proxy: the HTTP proxy that Slack is reached through.
            traces: what observes the requests.
        """
        own = {api.origin()} if api is not None else set()
        self._origins = SLACK_ORIGINS | own
        self._proxy = proxy
        trusted = [url.host for url in (*own, *([URL(proxy)] if proxy else [])) if url.host]
        self._session = guarded_session(Guard(trusted=trusted), traces=traces or ())

    async def close(self) -> None:
        """Closes the connections."""
        await self._session.close()

    async def post(self, url: str, message: dict[str, Any]) -> Reply:
        """Posts a message; its members that are ``None`` are left out.

        Raises:
            ResponseUrlError: the URL is not one of Slack's or the simulator's.
            PrivateAddressError: a name of Slack's leads to a private address.
            aiohttp.ClientError, TimeoutError, OSError: there is no answer.
        """
        checked = self._checked(url)
        given = {name: value for name, value in message.items() if value is not None}
        body = json.dumps(given, default=_plain).encode()
        return await post(self._session, str(checked), body, {}, proxy=self._proxy)

    def _checked(self, url: str) -> URL:
        try:
            parsed = URL(url) if len(url) <= LONGEST else None
            if parsed is not None and not parsed.user and parsed.origin() in self._origins:
                return parsed
        except ValueError:
            pass
        raise ResponseUrlError


def _plain(value: object) -> object:
    """slack-sdk's blocks and attachments as JSON."""
    if isinstance(value, JsonObject):
        return value.to_dict()
    raise TypeError(f"a message cannot hold a {type(value).__name__}")
