"""Find the token for an event: the one of the workspace or organization that installed the app."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from surelane.codec import SealedError
from surelane.errors import SurelaneError, described
from surelane.events import Event
from surelane.slack import OWN, is_shared, reporter_of
from surelane_service.common.durations import jittered
from surelane_service.installations import BOT, Expiring, Installations, Owner, Stored
from surelane_service.lifecycle import apart
from surelane_service.logs import get_logger
from surelane_worker.slack.client import SlackClients, slack_error
from surelane_worker.slack.limits import SlackBusyError

KEPT_FOR = timedelta(minutes=1)
"""How long a token is used without a look at the database. A removed installation's tokens go out of use by then."""
MISSING_FOR = 1.0
"""Seconds for which an installation that is missing is not looked for again."""
MOST = 2000
"""Installations that are kept."""
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
BATCH = 100
"""Most tokens of one look: Slack allows about a hundred refreshes per minute."""

_log = get_logger(__name__)


class NotInstalledError(Exception):
    """No workspace or organization of that id has installed the app."""

    def __init__(self, owner: Owner) -> None:
        super().__init__("the event's workspace has not installed the app")
        self.owner = owner


@dataclass(slots=True)
class _Known:
    token: str | None
    clients: SlackClients | None
    until: float
    """By the event loop's clock."""


@dataclass(eq=False)
class BotTokens:
    """The clients with the bot's token of each installation."""

    installs: "Refresher"
    make: Callable[[str], SlackClients]
    """Returns the clients with a token."""
    missing: dict[Owner, None] = field(default_factory=dict)
    """Whose missing installation was logged, the first one first."""
    _known: dict[tuple[str, bool], _Known] = field(default_factory=dict, repr=False)
    """By owner, in the order of their lookups. A plain tuple finds an :class:`Owner`, too."""
    _lookups: dict[Owner, asyncio.Task[SlackClients | None]] = field(default_factory=dict, repr=False)

    def kept(self, payload: Mapping[str, Any], now: float) -> SlackClients | None:
        """Return the clients for a payload that names a workspace whose token is kept: for nearly all events.

        ``None``: ask :meth:`clients_for`. Every event comes here, so nothing is awaited, and no owner is made.
        """
        named: Any = payload.get("authorizations")
        named = named[0] if type(named) is list and named else payload
        if type(named) is not dict or named.get("is_enterprise_install"):
            return None
        team = named.get("team_id")
        known = self._known.get((team, False)) if type(team) is str else None
        return known.clients if known is not None and now < known.until else None

    async def clients_for(self, event: Event) -> SlackClients | None:
        """Return the clients for an event; ``None`` for a job without one.

        A message of a shared channel may have come from several workspaces. If the first no longer has the app, the
        token of another one is used: its bot is in the channel, too.

        Raises:
            NotInstalledError: an event of Slack's is of a workspace that has not installed the app.
        """
        owner = owner_of(event)
        clients = None if owner is None else await self.clients_of(owner)
        if clients is None and owner is not None and event.kind.startswith(("slack.", OWN)):
            if is_shared(event.payload):
                other = await self.installs.installations.other_reporter(event.id)
                clients = None if other is None else await self.clients_of(other)
            if clients is None:
                raise NotInstalledError(owner)
        return clients

    async def wait(self, event: Event, owner: Owner, until: datetime) -> float | None:
        """Let an event wait for an install, which wakes it. Return the seconds after which to try again, if soon."""
        try:
            there = await self.installs.installations.await_one(event.id, owner, until)
        except SurelaneError as error:
            _log.warning("a wait for an install cannot be stored", **described(error))
            return None
        return MISSING_FOR if there else None

    def is_news(self, owner: Owner) -> bool:
        """Return whether it was not logged yet that this installation is missing. Note that it is logged now."""
        news = owner not in self.missing
        self.missing[owner] = None
        if len(self.missing) > MOST:
            del self.missing[next(iter(self.missing))]
        return news

    async def clients_of(self, owner: Owner) -> SlackClients | None:
        """Return the clients of an installation; ``None`` if there is none, or none with a bot."""
        known = self._known.get(owner)
        if known is not None and _now() < known.until:
            return known.clients
        lookup = self._lookups.get(owner)
        if lookup is None:
            lookup = self._lookups[owner] = apart(self._look_up(owner, known))
            lookup.add_done_callback(partial(self._looked_up, owner))
        return await asyncio.shield(lookup)  # one event's cancellation is not the others'

    async def is_replaced(self, owner: Owner, clients: SlackClients) -> bool:
        """Return whether an installation has another token by now than that of these clients."""
        if (known := self._known.get(owner)) is not None:
            known.until = 0.0
        return await self.clients_of(owner) not in (None, clients)

    def _looked_up(self, owner: Owner, lookup: asyncio.Task[SlackClients | None]) -> None:
        del self._lookups[owner]
        if not lookup.cancelled():
            lookup.exception()  # those who wait have it; without any, asyncio would complain

    async def _look_up(self, owner: Owner, known: _Known | None) -> SlackClients | None:
        try:
            row = (await self.installs.find(owner, BOT)).get(BOT)
        except SurelaneError as error:
            if known is None or known.clients is None:
                raise
            _log.warning("a token cannot be looked up; the last one is used", **described(error))
            return known.clients
        if row is None or row.token is None:
            self._keep(owner, _Known(None, None, _now() + MISSING_FOR))
            return None
        self.missing.pop(owner, None)
        clients = known.clients if known is not None and known.token == row.token else self.make(row.token)
        self._keep(owner, _Known(row.token, clients, _now() + jittered(KEPT_FOR / 1.3)))
        return clients

    def _keep(self, owner: Owner, known: _Known) -> None:
        self._known.pop(owner, None)
        self._known[owner] = known
        while len(self._known) > MOST:  # drop the oldest lookup
            del self._known[next(iter(self._known))]


def _now() -> float:
    return asyncio.get_running_loop().time()


def owner_of(event: Event) -> Owner | None:
    """Return whose installation an event is for; ``None`` where it names none."""
    return Owner.of(*reporter_of(event.payload))


def owner_fields(event: Event) -> dict[str, Any]:
    """Return how the payload of another event names the same installation."""
    owner = owner_of(event)
    if owner is None:
        return {}
    wide = {"enterprise_id": owner.identity, "is_enterprise_install": True}
    return wide if owner.enterprise_wide else {"team_id": owner.identity}


Fresh = tuple[Mapping[str, Any], datetime | None]
"""What a row is to hold, and when its access token expires."""


def _named(row: Stored | Expiring) -> dict[str, Any]:
    return {"owner": row.owner.identity, "user": row.user_id or None}


@dataclass(frozen=True)
class Refreshing(ABC):
    """Refreshes the tokens of rows, each by one process.

    A refresh token counts once. So a process claims the refresh of a row in the database, asks for new tokens without
    an open transaction, and stores them under the row's version. ADR 0067 says what a crash in between costs.
    """

    installations: Installations
    lasts: ClassVar[timedelta] = LASTS

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
        """Refresh a row's tokens. Return false if it is refused or they are gone; ``None``: another process does it."""
        begun = await self.installations.begin_refresh(row, self.lasts)
        if begun is None:
            return None
        tokens, version = begun
        # Not cancelled with the worker: the old refresh token is used up once there is an answer.
        return await asyncio.shield(self._exchange(row, tokens, version))

    async def _exchange(self, row: Stored | Expiring, tokens: Mapping[str, Any], version: int) -> bool:
        fresh = await self._fresh(row, tokens)
        if fresh is None:
            return False
        stored = await self.store(row, version, *fresh)
        if stored:
            _log.info("tokens were refreshed" if fresh[0] else "tokens were removed", **_named(row))
        else:
            _log.warning("refreshed tokens were not stored: the installation has changed", **_named(row))
        return stored

    @abstractmethod
    async def _fresh(self, row: Stored | Expiring, tokens: Mapping[str, Any]) -> Fresh | None:
        """Return what the row is to hold; ``None``: it stays, and its claim, too."""

    async def store(
        self, row: Stored | Expiring, version: int, tokens: Mapping[str, Any], ends: datetime | None
    ) -> bool:
        """Store the tokens. They exist nowhere else, so try again while the database is away."""
        until = time.monotonic() + STORE_WITHIN
        while True:
            try:
                if await self.installations.end_refresh(row, version, tokens, ends):
                    return True
                # A call without an answer may have stored them.
                now = (await self.installations.find(row.owner, row.user_id)).get(row.user_id)
                break
            except SurelaneError:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.5)
        return now is not None and {**now.values, **tokens} == now.values


@dataclass(frozen=True)
class Refresher(Refreshing):
    """Refreshes the tokens of Slack that expire, ahead of time. ``client``: calls Slack without a token."""

    client: AsyncWebClient
    client_id: str
    client_secret: str = field(repr=False)

    async def run(self) -> None:
        while True:
            try:
                await self.refresh_expiring()
            except SurelaneError as error:
                _log.warning("expiring tokens cannot be looked up", **described(error))
            await asyncio.sleep(jittered(EVERY))

    async def refresh_expiring(self) -> int:
        """Refresh the tokens that expire soon, one after another. Return how many were refreshed here."""
        refreshed = 0
        for row in await self.installations.expiring(AHEAD, BATCH):
            try:
                refreshed += bool(await self.refresh(row))
            except Exception as error:  # noqa: BLE001 - a row that is locked or cannot be read holds up no other
                said = str(error) if isinstance(error, (SealedError, SurelaneError)) else type(error).__name__
                _log.error("tokens cannot be refreshed", owner=row.owner.identity, error=said)
        return refreshed

    async def _fresh(self, row: Stored | Expiring, tokens: Mapping[str, Any]) -> Fresh | None:
        prefix = "bot" if row.user_id == BOT else "user"
        answer = await self._asked(tokens.get(f"{prefix}_refresh_token"), _named(row))
        if answer is None:
            return None
        expires_in, token, again = map(answer.get, ("expires_in", "access_token", "refresh_token"))
        ends = None if expires_in is None else datetime.now(UTC) + timedelta(seconds=int(expires_in))
        return {**tokens, f"{prefix}_token": token, f"{prefix}_refresh_token": again}, ends

    async def _asked(self, refresh_token: str | None, name: Mapping[str, Any]) -> Mapping[str, Any] | None:
        own = {"client_id": self.client_id, "client_secret": self.client_secret}
        fields = {**own, "grant_type": "refresh_token", "refresh_token": refresh_token or ""}
        try:
            async with asyncio.timeout(SLACK_WITHIN):
                answer = (await self.client.api_call("oauth.v2.access", data=fields)).data
        except SlackApiError as error:
            _log.error(
                "Slack refuses to refresh tokens; install the app again", error=slack_error(error), **name
            )
            return None
        except (aiohttp.ClientError, SlackBusyError, TimeoutError, OSError) as error:
            _log.warning("Slack does not answer a refresh of tokens", error=type(error).__name__, **name)
            return None
        return answer if isinstance(answer, dict) and answer.get("access_token") else None
