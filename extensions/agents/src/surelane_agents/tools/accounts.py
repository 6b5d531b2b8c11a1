"""Let a person connect accounts: post a button that this person alone sees, and wait for the token.

The token is looked up in each attempt, and is in no step. What the turn goes by is a step: whether there was one, when
the button was posted, and whether the turn goes on without it.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from slack_sdk.errors import SlackApiError

from surelane.slack import Place
from surelane_agents.agent_settings import agent_settings
from surelane_agents.calls import stored
from surelane_agents.errors import StoppedError, UnavailableError
from surelane_agents.tools.logins import UNUSABLE, Logins, word_of
from surelane_agents.tools.servers import Bearer, McpServer
from surelane_service.installations import Owner
from surelane_worker import Context, Event
from surelane_worker.handling.asks import CONNECT, button
from surelane_worker.handling.context import attempt_of
from surelane_worker.handling.flow import Key
from surelane_worker.handling.outcomes import Pause, duration
from surelane_worker.slack.chunks import sections
from surelane_worker.slack.client import final_reason
from surelane_worker.slack.tokens import owner_of

WAIT = "account"
"""The name of the wait; ``agent.wake_connected`` knows it."""
FIRST_LOOK = 60.0
"""Seconds after which a turn that was not woken looks again. Each further pause is as long as all before it."""
AGAIN = " again"
ASKED = {
    "": "To answer you I need your {} account. Only you see this.",
    AGAIN: "{} no longer accepts the account that you connected. Please connect it again. Only you see this.",
}
GONE = "I stop here: your {} account is no longer connected. Please ask again."


class PersonsAccounts:
    """The accounts of the person who caused an event, at the servers of a turn, in one attempt."""

    def __init__(self, servers: Mapping[str, McpServer], *turn: Any) -> None:
        slack, theirs = Accounts(*turn), {name: each for name, each in servers.items() if each.account}
        self._of = {
            name: slack if each.account == "slack" else ServerAccounts(name, each, *turn)
            for name, each in theirs.items()
        }
        self._bearers: dict[Accounts, Bearer | None] = {}

    async def connect(self) -> list[str]:
        """Get the tokens that are missing or were refused. Return the servers without one. It may suspend the turn."""
        for each in dict.fromkeys(self._of.values()):
            if each not in self._bearers:
                self._bearers[each] = await each.bearer()
            elif (bearer := self._bearers[each]) is not None and bearer.refused:
                self._bearers[each] = await each.bearer(bearer)
        return [name for name in self._of if self.bearer(name) is None]

    def bearer(self, server: str) -> Bearer | None:
        """Return what authenticates at a server as the person."""
        return self._bearers.get(self._of[server]) if server in self._of else None

    @property
    def refused(self) -> bool:
        """Whether a server has refused a token in this attempt."""
        return any(each is not None and each.refused for each in self._bearers.values())


class Accounts:
    """The Slack account of the person who caused an event, in one attempt."""

    name = "Slack"

    def __init__(self, ctx: Context, event: Event, place: Place, patience: Pause) -> None:
        """``patience``: how long the turn waits for the person."""
        self._ctx, self._event, self._place, self._patience = ctx, event, place, patience
        attempt, self._owners = attempt_of(ctx), _owners(event, place)
        self._steps, self._installs = attempt.steps, attempt.services.installs
        self._token: str | None = None
        self._stored_at = ""
        """When its token was stored, in a form that sorts."""
        self._again = False
        self._lost = False
        """Whether the person came back, and the account cannot be used."""
        self._prefix = WAIT  # of its steps' names

    async def bearer(self, refused: "Bearer | None" = None) -> Bearer | None:
        """Return what authenticates as the person; ``None``: the turn goes on without the person's servers.

        ``refused``: what an earlier call in this attempt returned, if a server has refused it. The turn is stopped if
        it has used the account that is gone now.
        """
        if refused is None:
            if not (self._may_ask and await self._connected("")):
                return None
            was_refused = Key(f"{self._prefix}{AGAIN} asked", 1) in await self._steps.past.all()
            if not was_refused and await self._find():
                return Bearer(self._token or "")
        elif await self._renewed(refused):
            return Bearer(self._token or "")
        # In tasks of their own: the run may have stored steps that come after this place.
        if not self._again:
            self._again = True
            if await asyncio.create_task(self._connected(AGAIN)) and await self._find():
                return Bearer(self._token or "")
        await asyncio.create_task(self._lose())
        return None

    async def _renewed(self, refused: Bearer) -> bool:  # noqa: ARG002 - Slack's are refreshed in time
        """Return whether there is another token than the refused one, without asking the person."""
        return False

    async def _step(self, name: str, *given: Any) -> Any:
        return await stored(self._ctx, f"{self._prefix}{name}", *given)

    @property
    def _may_ask(self) -> bool:
        """Whether Slack itself says who spoke, and there is a way to ask. A job's payload may name anybody."""
        place, can_connect = self._place, self._installs is not None and agent_settings().connect_url
        said = self._event.kind.startswith("slack.") and place.user and place.channel
        return bool(can_connect and said and self._owners)

    async def _connected(self, again: str) -> bool:
        """Return whether the person has connected the account. Ask for it once."""
        if not again and await self._step(" there", self._find):
            return True
        asked = await self._step(f"{again} asked", self._ask, again)
        if asked is None:
            return False
        at = datetime.fromisoformat(asked["at"])
        ends = at + duration(self._patience)
        look = partial(self._look, ends, asked["after"])
        while (there := await self._step(f"{again} looked", look)) is None:
            now = datetime.now(UTC)
            pause = min(max(FIRST_LOOK, (now - at).total_seconds()), (ends - now).total_seconds())
            await self._ctx.wait_for(WAIT, timeout=max(pause, 0.0))
        return bool(there)

    async def _ask(self, again: str) -> dict[str, Any] | None:
        """Post the button. Return when, and when the last token was stored; ``None``: Slack refuses the message."""
        text = ASKED[again].format(self.name)
        if (about := await self._begun()) is None:
            return None
        link = {"url": f"{agent_settings().connect_url}?{urlencode(about)}", "style": "primary"}
        actions = {"type": "actions", "elements": [button("Connect", CONNECT, "connect") | link]}
        try:
            await self._ctx.slack.whisper(self._event, text, blocks=[*sections(text), actions])
        except SlackApiError as error:
            if (reason := final_reason(error)) is None:
                raise
            self._ctx.log.warning("a person cannot be asked to connect an account", reason=reason)
            return None
        return {"at": datetime.now(UTC).isoformat(), "after": (self._stored_at or None) if again else None}

    async def _begun(self) -> dict[str, Any] | None:
        """Return what the button's link says; ``None``: the account cannot be connected."""
        return {"team": self._owners[0].identity, "user": self._place.user}

    async def _look(self, ends: datetime, after: str | None) -> bool | None:
        """Return whether there is a token of a time after ``after``; ``None``: not yet."""
        assert self._installs is not None  # noqa: S101 - see _may_ask
        given = self._event.id, self._owners[0], ends, self._place.user or ""
        await self._steps.fence.patiently(self._installs.installations.await_one, *given)
        if (await self._find() and (after is None or self._stored_at > after)) or self._lost:
            return True
        return False if datetime.now(UTC) >= ends else None

    async def _find(self) -> bool:
        """Look for the person's token. Return whether there is one."""
        self._token, user = None, self._place.user or ""
        for owner in self._owners:
            assert self._installs is not None  # noqa: S101 - see _may_ask
            row = (await self._steps.fence.patiently(self._installs.find, owner, user)).get(user)
            if row is not None and row.token:
                self._token = row.token
                self._stored_at = f"{row.installed_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"
        return self._token is not None

    async def _lose(self) -> None:
        """Let the turn go on without the account, if it has not used it yet."""

        async def too_late() -> bool:
            return bool(self._steps.past.unasked())

        if await self._step(" lost", too_late):
            raise StoppedError(GONE.format(self.name))


class ServerAccounts(Accounts):
    """The account of the person at an MCP server, in one attempt."""

    def __init__(self, name: str, server: McpServer, *turn: Any) -> None:
        super().__init__(*turn)
        self.name, self._server, self._prefix = name, server, f"{WAIT} [{name}]"
        # Bound to the server: one of another address has no use for the token.
        self._word = word_of(str(server.url))
        self._team = self._place.team or (self._owners[0].identity if self._owners else "")
        self._owner = Owner.at(self._word, self._team)

    @property
    def _logins(self) -> Logins:
        assert self._installs is not None  # noqa: S101 - see _may_ask
        return Logins(self._installs.installations)

    async def _begun(self) -> dict[str, Any] | None:
        user = self._place.user or ""
        try:
            await self._logins.begin(self.name, self._server, self._owner, user, self._token)
        except UNUSABLE as error:
            self._ctx.log.warning("no account can be connected", server=self.name, reason=str(error)[:500])
            return None
        return {"team": self._team, "user": user, "server": self._word}

    async def _find(self) -> bool:
        user = self._place.user or ""
        row = (await self._steps.fence.patiently(self._logins.find, self._owner, user)).get(user)
        if row is not None and row.expires_at is not None and row.expires_at <= datetime.now(UTC):
            raise UnavailableError(f"the authorization server of {self.name} does not answer")
        self._token = None if row is None else row.token
        self._lost = row is not None and not row.values
        return self._token is not None

    async def _renewed(self, refused: Bearer) -> bool:
        await self._logins.renew(self._owner, self._place.user or "", refused.token)
        return await self._find() and self._token != refused.token


def _owners(event: Event, place: Place) -> list[Owner]:
    """Return under whose installation the person's token may be stored. A guest from elsewhere has none."""
    owner = owner_of(event)
    if owner is None or (not owner.enterprise_wide and place.team != place.workspace):
        return []
    own = Owner(place.team) if owner.enterprise_wide and place.team else owner
    return list(dict.fromkeys((owner, own)))
