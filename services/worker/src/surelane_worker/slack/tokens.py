"""Find the token for an event: the one of the workspace or organization that installed the app.

A lookup is kept for a minute, for a bounded number of installations. Many events of one workspace cause one lookup.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from surelane.errors import SurelaneError
from surelane.events import Event
from surelane_service.durations import jittered
from surelane_service.installations import BOT, Owner, Stored
from surelane_service.logs import get_logger
from surelane_worker.slack.client import SlackClients
from surelane_worker.slack.place import SLACK_KINDS, object_in, text_in

KEPT_FOR = timedelta(minutes=1)
"""How long a token is used without a look at the database. A removed installation's tokens go out of use by then."""
MISSING_FOR = 1.0
"""Seconds for which an installation that is missing is not looked for again."""
MOST = 2000
"""Installations that are kept."""
OWN = "surelane."
"""The kinds of the clicks on our own buttons begin so."""

Find = Callable[[Owner, str | None], Awaitable[Mapping[str, Stored]]]
Await = Callable[[int, Owner, datetime], Awaitable[bool]]
Other = Callable[[int], Awaitable[Owner | None]]
Make = Callable[[str], SlackClients]
_log = get_logger(__name__)


class NotInstalledError(Exception):
    """No workspace or organization of that id has installed the app.

    Attributes:
        owner: the workspace or organization.
    """

    def __init__(self, owner: Owner) -> None:
        super().__init__("the event's workspace has not installed the app")
        self.owner = owner


@dataclass(slots=True)
class _Known:
    token: str | None
    clients: SlackClients | None
    until: float
    """By the event loop's clock."""


class Tokens:
    """The clients with the bot's token of each installation."""

    def __init__(self, find: Find, make: Make, await_one: Await, find_other: Other) -> None:
        """Keep the arguments.

        Args:
            find: returns an installation's rows, with fresh tokens.
            make: makes clients for a token.
            await_one: records that an event waits for an installation; returns whether it is there by now.
            find_other: returns an installation that reported an event of a shared channel, too.
        """
        self._find = find
        self._make = make
        self._await_one = await_one
        self._find_other = find_other
        self._known: dict[tuple[str, bool], _Known] = {}
        """By owner, in the order of their lookups. A plain tuple finds an :class:`Owner`, too."""
        self._lookups: dict[Owner, asyncio.Task[SlackClients | None]] = {}

    def kept(self, payload: Mapping[str, Any], now: float) -> SlackClients | None:
        """Return the clients for a payload that names a workspace whose token is kept: for nearly all events.

        ``None``: ask :meth:`clients_for`. Every event comes here, so nothing is awaited, and no owner is made.

        Args:
            payload: the event's.
            now: the event loop's time.
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
        if clients is None and owner is not None and event.kind.startswith((SLACK_KINDS, OWN)):
            if event.payload.get("is_ext_shared_channel") is True:
                other = await self._find_other(event.id)
                clients = None if other is None else await self.clients_of(other)
            if clients is None:
                raise NotInstalledError(owner)
        return clients

    async def wait(self, event: Event, owner: Owner, until: datetime) -> float | None:
        """Let an event wait for an installation. An install then wakes it.

        Return the seconds after which to try again all the same, where that is soon; ``None``: the install wakes it.
        """
        try:
            there = await self._await_one(event.id, owner, until)
        except SurelaneError as error:
            _log.warning("a wait for an install cannot be stored", error=type(error).__name__)
            return None
        return MISSING_FOR if there else None

    async def clients_of(self, owner: Owner) -> SlackClients | None:
        """Return the clients of an installation; ``None`` if there is none, or none with a bot."""
        known = self._known.get(owner)
        if known is not None and _now() < known.until:
            return known.clients
        lookup = self._lookups.get(owner)
        if lookup is None:
            lookup = self._lookups[owner] = asyncio.create_task(self._look_up(owner, known))
            lookup.add_done_callback(partial(self._looked_up, owner))
        return await asyncio.shield(lookup)  # one event's cancellation is not the others'

    def _looked_up(self, owner: Owner, lookup: asyncio.Task[SlackClients | None]) -> None:
        del self._lookups[owner]
        if not lookup.cancelled():
            lookup.exception()  # those who wait have it; without any, asyncio would complain

    async def _look_up(self, owner: Owner, known: _Known | None) -> SlackClients | None:
        try:
            row = (await self._find(owner, BOT)).get(BOT)
        except SurelaneError as error:
            if known is None or known.clients is None:
                raise
            _log.warning("a token cannot be looked up; the last one is used", error=type(error).__name__)
            return known.clients
        if row is None or row.token is None:
            self._keep(owner, _Known(None, None, _now() + MISSING_FOR))
            return None
        clients = known.clients if known is not None and known.token == row.token else self._make(row.token)
        self._keep(owner, _Known(row.token, clients, _now() + jittered(KEPT_FOR / 1.3)))
        return clients

    def _keep(self, owner: Owner, known: _Known) -> None:
        self._known.pop(owner, None)
        self._known[owner] = known
        while len(self._known) > MOST:  # the one that was looked up first
            del self._known[next(iter(self._known))]


def _now() -> float:
    return asyncio.get_running_loop().time()


def owner_of(event: Event) -> Owner | None:
    """Return whose installation an event is for; ``None`` where it names none.

    The Events API names it in ``authorizations``. Commands name it by fields, and interactions by objects.
    """
    payload = event.payload
    authorizations = payload.get("authorizations")
    named = payload
    if isinstance(authorizations, list) and authorizations:
        named = object_in(authorizations[0])
    if named is not payload:
        return _owner(named.get("enterprise_id"), named.get("team_id"), named.get("is_enterprise_install"))
    return _owner(
        payload.get("enterprise_id") or object_in(payload.get("enterprise")).get("id"),
        payload.get("team_id") or object_in(payload.get("team")).get("id"),
        payload.get("is_enterprise_install"),
    )


def owner_fields(event: Event) -> dict[str, Any]:
    """Return how the payload of another event names the same installation."""
    owner = owner_of(event)
    if owner is None:
        return {}
    wide = {"enterprise_id": owner.identity, "is_enterprise_install": True}
    return wide if owner.enterprise_wide else {"team_id": owner.identity}


def _owner(enterprise: Any, team: Any, wide: Any) -> Owner | None:  # noqa: ANN401 - from a payload
    return Owner.of(text_in(enterprise), text_in(team), wide is True or wide == "true")
