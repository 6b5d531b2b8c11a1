"""Refresh tokens that expire, ahead of time, each by one worker.

Slack takes a refresh token once. So a worker claims the refresh of a row in the database, asks Slack without an open
transaction, and stores the answer under the row's version. ADR 0068 says what a crash in between costs.
"""

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from surelane.encryption.keys import SealedError
from surelane.errors import SurelaneError
from surelane_service.durations import jittered
from surelane_service.installations import BOT, Expiring, Installations, Owner, Stored
from surelane_service.logs import get_logger
from surelane_worker.slack.client import slack_error
from surelane_worker.slack.turns import SlackBusyError

AHEAD = timedelta(hours=3)
"""How long before its end a token is refreshed. Bolt refreshes tokens itself two hours before, if it may."""
SOON = timedelta(minutes=1)
"""A token that ends sooner is refreshed before it is used."""
EVERY = timedelta(minutes=1)
LASTS = timedelta(minutes=1)
"""How long the claim of a refresh stands. It is longer than a refresh takes."""
SLACK_WITHIN = 10.0
STORE_WITHIN = 30.0
"""Seconds for which the new tokens are stored again and again while the database is away."""
AT_ONCE = 4
BATCH = 100
"""Most tokens of one look: Slack allows about a hundred refreshes per minute."""

_log = get_logger(__name__)


class Refresher:
    """Keeps the tokens of installations fresh.

    Attributes:
        installations: the stored installations.
    """

    def __init__(
        self,
        installations: Installations,
        client: AsyncWebClient,
        client_id: str,
        client_secret: str,
        *,
        every: timedelta = EVERY,
    ) -> None:
        """Keep the arguments. ``client`` calls Slack without a token; ``every`` is the pause between two looks."""
        self.installations = installations
        self._client = client
        self._client_id = client_id
        self._client_secret = client_secret
        self._every = every

    async def run(self) -> None:
        """Refresh what expires soon, until cancelled."""
        while True:
            try:
                await self.refresh_expiring()
            except SurelaneError as error:
                _log.warning("expiring tokens cannot be looked up", error=type(error).__name__)
            await asyncio.sleep(jittered(self._every))

    async def refresh_expiring(self) -> int:
        """Refresh the tokens that expire soon. Return how many were refreshed here."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(row: Expiring) -> bool | None:
            async with limit:
                try:
                    return await self.refresh(row)
                except SealedError as error:
                    _log.error("tokens cannot be refreshed", owner=row.owner.identity, error=str(error))
                    return False

        rows = await self.installations.expiring(AHEAD, BATCH)
        return sum(map(bool, await asyncio.gather(*(one(row) for row in rows))))

    async def find(self, owner: Owner, user_id: str | None = None) -> Mapping[str, Stored]:
        """Return an installation's rows. Tokens that are about to end are refreshed first."""
        rows = await self.installations.find(owner, user_id)
        soon = datetime.now(UTC) + SOON
        late = [row for row in rows.values() if row.expires_at is not None and row.expires_at <= soon]
        if not late:
            return rows
        elsewhere = None in [await self.refresh(row) for row in late]
        until = time.monotonic() + (SLACK_WITHIN if elsewhere else 0)
        while True:  # another worker may be about to store them
            rows = await self.installations.find(owner, user_id)
            now = datetime.now(UTC)
            ended = [row for row in rows.values() if row.expires_at is not None and row.expires_at <= now]
            if not ended or time.monotonic() > until:
                return rows
            await asyncio.sleep(0.2)

    async def refresh(self, row: Stored | Expiring) -> bool | None:
        """Refresh a row's tokens. Return false if Slack refuses or they are gone; ``None``: another process does it."""
        begun = await self.installations.begin_refresh(row, LASTS)
        if begun is None:
            return None
        tokens, version = begun
        # Not cancelled with the worker: the old refresh token is used up once Slack has answered.
        return await asyncio.shield(self._exchange(row, tokens, version))

    async def _exchange(self, row: Stored | Expiring, tokens: Mapping[str, Any], version: int) -> bool:
        prefix = "bot" if row.user_id == BOT else "user"
        name = {"owner": row.owner.identity, "user": row.user_id or None}
        answer = await self._asked(tokens.get(f"{prefix}_refresh_token"), name)
        if answer is None:
            return False
        expires_in = answer.get("expires_in")
        fresh = {
            **tokens,
            f"{prefix}_token": answer["access_token"],
            f"{prefix}_refresh_token": answer.get("refresh_token"),
        }
        ends = None if expires_in is None else datetime.now(UTC) + timedelta(seconds=int(expires_in))
        stored = await self._store(row, version, fresh, ends)
        if stored:
            _log.info("tokens were refreshed", **name)
        else:
            _log.warning("refreshed tokens were not stored: the installation has changed", **name)
        return stored

    async def _asked(self, refresh_token: str | None, name: dict[str, Any]) -> Mapping[str, Any] | None:
        fields = {
            "client_id": self._client_id,
            "client_secret": self._client_secret,
            "grant_type": "refresh_token",
            "refresh_token": refresh_token or "",
        }
        try:
            async with asyncio.timeout(SLACK_WITHIN):
                answer = (await self._client.api_call("oauth.v2.access", data=fields)).data
        except SlackApiError as error:
            _log.error(
                "Slack refuses to refresh tokens; install the app again", error=slack_error(error), **name
            )
            return None
        except (aiohttp.ClientError, SlackBusyError, TimeoutError, OSError) as error:
            _log.warning("Slack does not answer a refresh of tokens", error=type(error).__name__, **name)
            return None
        return answer if isinstance(answer, dict) and answer.get("access_token") else None

    async def _store(
        self, row: Stored | Expiring, version: int, tokens: Mapping[str, Any], ends: datetime | None
    ) -> bool:
        """Store the tokens. They exist nowhere else, so try again while the database is away."""
        until = time.monotonic() + STORE_WITHIN
        while True:
            try:
                if await self.installations.end_refresh(row, version, tokens, ends):
                    return True
                return await self._is_stored(row, tokens)
            except SurelaneError:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.5)

    async def _is_stored(self, row: Stored | Expiring, tokens: Mapping[str, Any]) -> bool:
        """Return whether a row holds these tokens: a call without an answer may have stored them."""
        now = (await self.installations.find(row.owner, row.user_id)).get(row.user_id)
        return now is not None and {**now.values, **tokens} == now.values
