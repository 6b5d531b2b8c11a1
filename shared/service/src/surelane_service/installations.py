"""The installations of the Slack app: whose tokens they are, and how they are stored.

An installation belongs to a workspace or to a whole Enterprise Grid organization. Its rows are the bot's and one per
person who installed. Tokens are sealed for their row before they are sent to the database (ADRs 0066 and 0067).
A person's account at another server is such a row, too: see :meth:`Owner.at`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self

from slack_sdk.oauth.installation_store import Bot, Installation

from surelane.calls import Calls, Connection, Pool, Row
from surelane.codec import SealedError, SecretKeys

BOT = ""
"""The user id of a bot's row."""
_BOT_TOKENS = ("bot_token", "bot_refresh_token", "incoming_webhook_url", "custom_values")
_USER_TOKENS = ("user_token", "user_refresh_token", "custom_values")
_BOT_DETAILS = (
    "bot_id",
    "bot_user_id",
    "bot_scopes",
    "incoming_webhook_channel",
    "incoming_webhook_channel_id",
    "incoming_webhook_configuration_url",
)
_USER_DETAILS = ("user_id", "user_scopes")
_DETAILS = ("enterprise_id", "enterprise_name", "enterprise_url", "team_id", "team_name", "token_type")

_UNTIL = "coalesce($4::timestamptz, 'infinity')"
_Row = tuple[str, Sequence[str], Sequence[str], datetime | None]
"""A person's id, the names of the details and of the tokens, and when the access token expires."""


class Owner(NamedTuple):
    """A workspace, or an organization whose installation is for all its workspaces.

    A tuple is made and hashed in a third of a frozen dataclass's time, and each event needs that.
    """

    identity: str
    enterprise_wide: bool = False

    @classmethod
    def of(
        cls, enterprise_id: str | None, team_id: str | None, is_enterprise_install: bool | None
    ) -> Self | None:
        """Return the owner by the three values with which Slack names one; ``None`` where they name none."""
        wide = bool(is_enterprise_install) or not team_id
        identity = enterprise_id if wide else team_id
        return cls(identity, wide) if identity else None

    @property
    def arguments(self) -> tuple[bool, str]:
        """It, as the SQL functions take it."""
        return self.enterprise_wide, self.identity

    @classmethod
    def at(cls, server: str, workspace: str) -> Self:
        """Return the owner of the accounts that people of a workspace have at a server, which a word names."""
        return cls(f"{workspace} {server}")

    def place(self, user_id: str) -> str:
        """Return the place for which a row's tokens are sealed."""
        return json.dumps(["installation", self.enterprise_wide, self.identity, user_id])


@dataclass(frozen=True, slots=True)
class Stored:
    """A row: the tokens of the bot (``user_id`` is :data:`BOT`), or of one person.

    Attributes:
        values: the attributes of slack-sdk's ``Installation`` that it holds, tokens included.
        expires_at: when the access token expires; ``None``: never.
        version: counts the changes of the tokens.
    """

    owner: Owner
    user_id: str
    app_id: str | None
    values: Mapping[str, Any] = field(repr=False)
    expires_at: datetime | None
    version: int
    installed_at: datetime

    @property
    def token(self) -> str | None:
        return self.values.get("bot_token" if self.user_id == BOT else "user_token")


@dataclass(frozen=True, slots=True)
class Expiring:
    """A row whose tokens expire soon. The attributes are those of :class:`Stored`."""

    owner: Owner
    user_id: str
    version: int
    expires_at: datetime


class Installations:
    """The functions about installations. Methods raise errors of :mod:`surelane.errors`.

    Those that read tokens raise :class:`~surelane.codec.SealedError` where no key opens them.
    """

    def __init__(self, database: Pool | Connection, keys: SecretKeys) -> None:
        self._database = Calls(database, cuts=True)
        self._keys = keys

    async def save(self, installation: Installation) -> None:
        """Store an installation: the person's row, and the bot's where it has a bot token."""
        given = installation.to_dict_for_copying()
        owner = Owner.of(installation.enterprise_id, installation.team_id, installation.is_enterprise_install)
        rows: list[_Row] = [
            (installation.user_id, _USER_DETAILS, _USER_TOKENS, given["user_token_expires_at"])
        ]
        if installation.bot_token:
            rows.append((BOT, _BOT_DETAILS, _BOT_TOKENS, given["bot_token_expires_at"]))
        await self._save(owner, given, rows)

    async def save_bot(self, bot: Bot) -> None:
        given = bot.to_dict_for_copying()
        owner = Owner.of(bot.enterprise_id, bot.team_id, bot.is_enterprise_install)
        await self._save(owner, given, [(BOT, _BOT_DETAILS, _BOT_TOKENS, given["bot_token_expires_at"])])

    async def add_account(self, owner: Owner, user_id: str) -> None:
        """Add a row without tokens, unless there is one. What it holds comes by a refresh."""
        await self._database.call("add_account", owner.identity, user_id, self._sealed(owner, user_id, {}))

    async def _save(self, owner: Owner | None, given: Mapping[str, Any], rows: Sequence[_Row]) -> None:
        if owner is None:
            raise ValueError("an installation needs the id of a workspace or of an organization")
        await self._database.call(
            "save_installation",
            *owner.arguments,
            given["app_id"],
            [user for user, _, _, _ in rows],
            [json.dumps(_part(given, (*_DETAILS, *details))) for _, details, _, _ in rows],
            [self._sealed(owner, user, _part(given, tokens)) for user, _, tokens, _ in rows],
            [expires_at for _, _, _, expires_at in rows],
        )

    async def find(self, owner: Owner, user_id: str | None = None) -> dict[str, Stored]:
        """Return the bot's row and a person's by their user ids; ``None``: the person who installed last.

        That person's row is left out if no key opens it: the bot goes on.
        """
        found = {}
        for row in await self._database.rows("find_installation", *owner.arguments, user_id):
            try:
                found[row["user_id"]] = self._stored(owner, row)
            except SealedError:
                if row["user_id"] in (BOT, user_id):
                    raise
        return found

    async def await_one(self, event_id: int, owner: Owner, until: datetime, user_id: str = BOT) -> bool:
        """Record that an event waits for an installation until then. Return whether it is there by now."""
        return await self._database.call("await_installation", event_id, *owner.arguments, until, user_id)

    async def wake_connected(self, user_id: str) -> None:
        """Wake the events that wait for a person's account."""
        await self._database.call("wake_connected", user_id)

    async def note_report(self, event_id: int, owner: Owner) -> None:
        """Note that an installation reported a stored event, too: its token may answer the event."""
        await self._database.call("note_report", event_id, *owner.arguments)

    async def other_reporter(self, event_id: int) -> Owner | None:
        """Return an installation that reported an event, too, and has a bot now; ``None``: there is none."""
        row = await self._database.row("other_reporter", event_id)
        return None if row is None else _owner(row)

    async def delete(
        self, owner: Owner, user_ids: Sequence[str] | None = None, until: datetime | None = None
    ) -> int:
        """Delete an installation's rows, or those of ``user_ids``, installed by ``until``. Return how many."""
        return await self._database.fetchval(
            f"select agent.delete_installation($1, $2, $3, {_UNTIL})", *owner.arguments, user_ids, until
        )

    async def uninstall(self, owner: Owner, enterprise_id: str | None, until: datetime | None = None) -> int:
        """Delete an installation that was removed from Slack, and record that. Return how many rows there were.

        Rows that were installed after ``until`` stay, and nothing is recorded then.
        """
        return await self._database.fetchval(
            f"select agent.uninstall($1, $2, $3, {_UNTIL})", *owner.arguments, enterprise_id, until
        )

    async def expiring(self, within: timedelta, limit: int = 100) -> list[Expiring]:
        """Return rows whose tokens expire within a time, the first ones first, and that no process refreshes."""
        rows = await self._database.rows("expiring_installations", within, limit)
        return [Expiring(_owner(row), row["user_id"], row["version"], row["expires_at"]) for row in rows]

    async def begin_refresh(
        self, row: Stored | Expiring, lasts: timedelta
    ) -> tuple[dict[str, Any], int] | None:
        """Claim the refresh of a row's tokens: return them, and the version with which to store the new ones.

        ``None``: another process refreshes them, or they have changed.
        """
        given = *row.owner.arguments, row.user_id, row.version, lasts
        begun = await self._database.row("begin_refresh", *given)
        if begun is None:
            return None
        return self._opened(row.owner, row.user_id, begun["sealed"]), begun["version"]

    async def end_refresh(
        self, row: Stored | Expiring, version: int, tokens: Mapping[str, Any], expires_at: datetime | None
    ) -> bool:
        """Store refreshed tokens. Return false if the row was installed anew or deleted meanwhile."""
        sealed = self._sealed(row.owner, row.user_id, tokens)
        given = *row.owner.arguments, row.user_id, version, sealed, expires_at
        return await self._database.call("end_refresh", *given)

    async def use_oauth_state(self, state: bytes, expires_at: datetime) -> bool:
        """Record that the state of an OAuth install is used; return false if it was before."""
        return bool(await self._database.call("use_oauth_state", state, expires_at))

    def _sealed(self, owner: Owner, user_id: str, tokens: Mapping[str, Any]) -> bytes:
        return self._keys.seal(json.dumps(tokens).encode(), owner.place(user_id))

    def _opened(self, owner: Owner, user_id: str, sealed: bytes) -> dict[str, Any]:
        opened: dict[str, Any] = json.loads(self._keys.open(sealed, owner.place(user_id)))
        return opened

    def _stored(self, owner: Owner, row: Row) -> Stored:
        values = json.loads(row["details"]) | self._opened(owner, row["user_id"], row["sealed"])
        user, app = row["user_id"], row["app_id"] or None
        return Stored(owner, user, app, values, row["expires_at"], row["version"], row["installed_at"])


def _owner(row: Row) -> Owner:
    return Owner(row["owner_id"], row["enterprise_wide"])


def _part(given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: given[name] for name in names if given.get(name)}


def installation_of(rows: Mapping[str, Stored], user_id: str | None = None) -> Installation | None:
    """Return rows as slack-sdk's ``Installation``; ``None`` where that person has none.

    It has no refresh tokens: workers use each once, and a second use would lose the installation.
    """
    bot = rows.get(BOT)
    person = next((row for row in rows.values() if row.user_id != BOT), None)
    if person is None and (bot is None or user_id is not None):
        return None
    found = [row for row in (bot, person) if row is not None]
    values: dict[str, Any] = {}
    for row in found:
        values |= row.values
        values[f"{'bot' if row is bot else 'user'}_token_expires_at"] = row.expires_at
    given = {name: value for name, value in values.items() if not name.endswith("_refresh_token")}
    newest = max(found, key=lambda row: row.installed_at)
    return Installation(
        **{"user_id": ""} | given,
        app_id=newest.app_id,
        is_enterprise_install=newest.owner.enterprise_wide,
        installed_at=newest.installed_at.astimezone(UTC),
    )


def bot_of(rows: Mapping[str, Stored]) -> Bot | None:
    """Return the bot's row as slack-sdk's ``Bot``, without its refresh token; ``None`` where there is none."""
    installation = installation_of({BOT: rows[BOT]}) if BOT in rows else None
    return None if installation is None else installation.to_bot()
