"""Keep who installed the app, and the tokens that Slack gave it: codes, grants, rotation and removal.

Every unknown ``xoxb-`` token is that of the demo workspace's bot. That workspace has the app without an install, unless
the app has a client id: then it installs the app by OAuth, as the other workspaces do. Two of those belong to an
Enterprise Grid organization, which may install the app for all its workspaces.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from secrets import token_hex
from typing import Literal

from surelane_dev.simulator.workspace.model import JSON
from surelane_dev.simulator.workspace.workspace import Workspace
from surelane_service.service_settings import DEMO_CLIENT_ID, DEMO_CLIENT_SECRET

CODE_LIVES = 600.0
"""Seconds for which a code can be exchanged."""


class RefusedGrantError(Exception):
    """A code, token or client that Slack refuses. The message is Slack's name of the error."""


@dataclass(frozen=True, slots=True)
class AuthorizeRequest:
    """What a link to Slack's OAuth page asks for."""

    redirect_uri: str
    scopes: str = ""
    user_scopes: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """A code that the app exchanges for tokens."""

    asked: AuthorizeRequest
    workspace: Workspace
    user_id: str
    wide: bool
    expires_at: float


@dataclass(slots=True)
class Grant:
    """A token of the app."""

    sort: Literal["bot", "user"]
    workspace: Workspace
    user_id: str
    wide: bool
    scopes: str
    expires_at: float | None = None
    refresh_token: str | None = None
    refused: str | None = None
    """Slack's error once the token is no longer valid."""

    @property
    def owner(self) -> str:
        """The id of the workspace, or of the organization that installed for all its workspaces."""
        return owner_of(self.workspace, wide=self.wide)

    def is_valid_bot(self) -> bool:
        """Return whether it is of a bot and still valid."""
        return self.sort == "bot" and not self.refused


def owner_of(workspace: Workspace, *, wide: bool) -> str:
    """Return the id under which an installation is kept."""
    return (workspace.enterprise_id or "") if wide else workspace.team_id


class Installs:
    """The installations of the app in all workspaces."""

    def __init__(
        self,
        workspaces: Iterable[Workspace] = (),
        *,
        token_lives: timedelta | None = None,
        without: Workspace | None = None,
    ) -> None:
        """``token_lives``: ``None``: tokens do not expire. ``without``: has the app without an install."""
        self.workspaces = {workspace.team_id: workspace for workspace in workspaces}
        self.token_lives, self.without = token_lives, without
        self.grants: dict[str, Grant] = {}
        """All tokens ever given, by token."""
        self.removed: Callable[[Workspace, JSON, bool], None] = lambda *_: None
        """Gets the workspace, the event and whether the installation was organization-wide."""
        self.listeners: list[Callable[[], None]] = []
        """Called when a token comes or goes."""
        self._codes: dict[str, Code] = {}
        self.refreshes: dict[str, Grant] = {}
        """What was granted, by the tokens that refresh it."""

    def named(self, identity: str) -> Workspace | None:
        """Return a workspace by its id, or the first one of an organization."""
        workspaces = self.workspaces.values()
        return next((each for each in workspaces if identity in (each.team_id, each.enterprise_id)), None)

    def approve(
        self, asked: AuthorizeRequest, workspace: Workspace, *, wide: bool, user: str | None = None
    ) -> str:
        """Return a code for the tokens of a workspace or its organization. ``user``: who approves."""
        code, user = token_hex(16), user or workspace.people()[0].id
        self._codes[code] = Code(asked, workspace, user, wide, time.time() + CODE_LIVES)
        return code

    def check_client(self, client_id: object, client_secret: object) -> None:
        """Check who exchanges a code. Raises RefusedGrantError: it is not the demo app."""
        if client_id != DEMO_CLIENT_ID:
            raise RefusedGrantError("invalid_client_id")
        if client_secret != DEMO_CLIENT_SECRET:
            raise RefusedGrantError("bad_client_secret")

    def exchange(self, code: str, redirect_uri: str) -> JSON:
        """Exchange a code for tokens, unless it is unknown, used or old, or was made for another address."""
        found = self._codes.pop(code, None)
        if found is None or found.expires_at < time.time():
            raise RefusedGrantError("invalid_code")
        if redirect_uri and redirect_uri != found.asked.redirect_uri:
            raise RefusedGrantError("bad_redirect_uri")
        workspace = found.workspace
        person: JSON = {"id": found.user_id}
        answer = _owner_json(workspace, wide=found.wide)
        answer |= {"is_enterprise_install": found.wide, "authed_user": person}
        if found.asked.scopes:
            bot = Grant("bot", workspace, workspace.bot.id, found.wide, found.asked.scopes)
            answer |= {"bot_user_id": workspace.bot.id, **self._given(bot)}
        if found.asked.user_scopes:
            user = Grant("user", workspace, found.user_id, found.wide, found.asked.user_scopes)
            person |= self._given(user)
        self._changed()
        return answer

    def refresh(self, refresh_token: str) -> JSON:
        """Exchange a refresh token, which works once, for new tokens."""
        old = self.refreshes.pop(refresh_token, None)
        if old is None or old.refused:
            raise RefusedGrantError("invalid_refresh_token")
        old.refresh_token = None
        given = self._given(Grant(old.sort, old.workspace, old.user_id, old.wide, old.scopes))
        self._changed()
        bot = {"bot_user_id": old.user_id} if old.sort == "bot" else {}
        return {**_owner_json(old.workspace, wide=old.wide), **bot, **given}

    def restore(self, token: str, grant: Grant) -> None:
        self.grants[token] = grant
        if grant.refresh_token is not None:
            self.refreshes[grant.refresh_token] = grant

    def grant_of(self, token: str | None) -> Grant | None:
        """Return the grant of a token; ``None``: the token was not given here. An expired token is refused."""
        grant = self.grants.get(token or "")
        if grant is None:
            return None
        if grant.refused:
            raise RefusedGrantError(grant.refused)
        if grant.expires_at is not None and grant.expires_at < time.time():
            raise RefusedGrantError("token_expired")
        return grant

    def installed(self, workspace: Workspace) -> Grant | None:
        """Return a valid bot's grant with which the app sees a workspace: its own, or its organization's."""
        owners = {owner_of(workspace, wide=False), owner_of(workspace, wide=True)} - {""}
        latest_first = reversed(self.grants.values())
        return next((each for each in latest_first if each.is_valid_bot() and each.owner in owners), None)

    def owners(self) -> set[str]:
        """Return the ids of the workspaces and organizations that have installed the app."""
        return {each.owner for each in self.grants.values() if each.is_valid_bot()}

    def has_app(self, workspace: Workspace) -> bool:
        return workspace is self.without or self.installed(workspace) is not None

    def is_wide(self, workspace: Workspace) -> bool:
        """Return whether a workspace has the app by its organization's install."""
        grant = self.installed(workspace)
        return grant is not None and grant.wide

    def revoke(self, grant: Grant) -> None:
        """Revoke one token, and tell the app."""
        grant.refused = "token_revoked"
        self._changed()
        users = {"oauth": [], "bot": [], ("bot" if grant.sort == "bot" else "oauth"): [grant.user_id]}
        self.removed(grant.workspace, {"type": "tokens_revoked", "tokens": users}, grant.wide)

    def uninstall(self, workspace: Workspace, *, wide: bool = False) -> int:
        """Remove an installation with all its tokens, and tell the app twice, as Slack does. Return their number."""
        owner = owner_of(workspace, wide=wide)
        found = [each for each in self.grants.values() if each.owner == owner and not each.refused]
        users: dict[str, set[str]] = {"oauth": set(), "bot": set()}
        for grant in found:
            grant.refused = "account_inactive"
            users["bot" if grant.sort == "bot" else "oauth"].add(grant.user_id)
        if found:
            self._changed()
            tokens = {sort: sorted(ids) for sort, ids in users.items()}
            self.removed(workspace, {"type": "app_uninstalled"}, wide)
            self.removed(workspace, {"type": "tokens_revoked", "tokens": tokens}, wide)
        return len(found)

    def _changed(self) -> None:
        for listener in self.listeners:
            listener()

    def _given(self, grant: Grant) -> JSON:
        rotates = self.token_lives is not None
        prefix = "xoxb" if grant.sort == "bot" else "xoxp"
        token = f"{'xoxe.' if rotates else ''}{prefix}-{'1-' if rotates else ''}{token_hex(16)}"
        given: JSON = {"access_token": token, "token_type": grant.sort, "scope": grant.scopes}
        if self.token_lives is not None:
            seconds = int(self.token_lives.total_seconds())
            grant.expires_at = time.time() + seconds
            grant.refresh_token = f"xoxe-1-{token_hex(16)}"
            self.refreshes[grant.refresh_token] = grant
            given |= {"expires_in": seconds, "refresh_token": grant.refresh_token}
        self.grants[token] = grant
        return given


def enterprise_json(workspace: Workspace) -> JSON | None:
    """Return a workspace's organization; ``None`` where it has none."""
    return {"id": workspace.enterprise_id, "name": "Acme Grid"} if workspace.enterprise_id else None


def _owner_json(workspace: Workspace, *, wide: bool) -> JSON:
    team = None if wide else {"id": workspace.team_id, "name": workspace.name}
    return {"app_id": workspace.app_id, "team": team, "enterprise": enterprise_json(workspace)}
