"""Surelane's installations behind slack-sdk's interfaces, so that Bolt apps use the store that ingest and workers use.

Both stores hand out no refresh tokens: workers refresh tokens, each once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from logging import Logger
from typing import Any, TypeVar

from slack_sdk.oauth.installation_store import Bot, Installation, InstallationStore
from slack_sdk.oauth.installation_store.async_installation_store import AsyncInstallationStore

from surelane_service.installations import BOT, Installations, Owner, Stored, bot_of, installation_of

Find = Callable[[Owner, str | None], Awaitable[dict[str, Stored]]]
Result = TypeVar("Result")

PATIENCE = 30.0
"""Seconds for which a synchronous call waits."""


class AsyncInstallations(AsyncInstallationStore):
    """slack-sdk's asynchronous store of installations, in PostgreSQL."""

    def __init__(self, installations: Installations, find: Find | None = None) -> None:
        """``find`` returns an installation's rows with fresh tokens; by default they are as they are stored."""
        self._installations = installations
        self._find = find or installations.find

    @property
    def logger(self) -> Logger:
        """A logger that this class does not use: it logs nothing."""
        return logging.getLogger(__name__)

    async def async_save(self, installation: Installation) -> None:
        """Store an installation. It replaces the one of the same person, and the bot's token."""
        await self._installations.save(installation)

    async def async_save_bot(self, bot: Bot) -> None:
        """Store a bot's token."""
        await self._installations.save_bot(bot)

    async def async_find_bot(
        self,
        *,
        enterprise_id: str | None,
        team_id: str | None,
        is_enterprise_install: bool | None = False,
    ) -> Bot | None:
        """Return the bot of a workspace or an organization."""
        owner = Owner.of(enterprise_id, team_id, is_enterprise_install)
        return None if owner is None else bot_of(await self._find(owner, BOT))

    async def async_find_installation(
        self,
        *,
        enterprise_id: str | None,
        team_id: str | None,
        user_id: str | None = None,
        is_enterprise_install: bool | None = False,
    ) -> Installation | None:
        """Return a person's installation; without ``user_id`` the latest one."""
        owner = Owner.of(enterprise_id, team_id, is_enterprise_install)
        return None if owner is None else installation_of(await self._find(owner, user_id), user_id)

    async def async_delete_bot(self, *, enterprise_id: str | None, team_id: str | None) -> None:
        """Delete the bot's tokens. Without ``team_id`` it is the organization's bot."""
        await self._delete(enterprise_id, team_id, [BOT])

    async def async_delete_installation(
        self, *, enterprise_id: str | None, team_id: str | None, user_id: str | None = None
    ) -> None:
        """Delete a person's tokens; without ``user_id`` all tokens."""
        await self._delete(enterprise_id, team_id, None if user_id is None else [user_id])

    async def async_delete_all(self, *, enterprise_id: str | None, team_id: str | None) -> None:
        """Delete all tokens of a workspace; without ``team_id`` those of the organization."""
        await self._delete(enterprise_id, team_id, None)

    async def _delete(self, enterprise_id: str | None, team_id: str | None, users: list[str] | None) -> None:
        owner = Owner.of(enterprise_id, team_id, is_enterprise_install=False)
        if owner is not None:
            await self._installations.delete(owner, users)


class SyncInstallations(InstallationStore):
    """The same for synchronous Bolt apps, whose listeners run in threads. It calls the asynchronous store."""

    def __init__(self, store: AsyncInstallations, loop: asyncio.AbstractEventLoop) -> None:
        """``loop`` runs the store's calls, and must not be the caller's own."""
        self._store = store
        self._loop = loop

    @property
    def logger(self) -> Logger:
        """A logger that this class does not use."""
        return self._store.logger

    def save(self, installation: Installation) -> None:
        """Store an installation."""
        self._wait(self._store.async_save(installation))

    def save_bot(self, bot: Bot) -> None:
        """Store a bot's token."""
        self._wait(self._store.async_save_bot(bot))

    def find_bot(
        self,
        *,
        enterprise_id: str | None,
        team_id: str | None,
        is_enterprise_install: bool | None = False,
    ) -> Bot | None:
        """Return the bot of a workspace or an organization."""
        return self._wait(
            self._store.async_find_bot(
                enterprise_id=enterprise_id, team_id=team_id, is_enterprise_install=is_enterprise_install
            )
        )

    def find_installation(
        self,
        *,
        enterprise_id: str | None,
        team_id: str | None,
        user_id: str | None = None,
        is_enterprise_install: bool | None = False,
    ) -> Installation | None:
        """Return a person's installation; without ``user_id`` the latest one."""
        return self._wait(
            self._store.async_find_installation(
                enterprise_id=enterprise_id,
                team_id=team_id,
                user_id=user_id,
                is_enterprise_install=is_enterprise_install,
            )
        )

    def delete_bot(self, *, enterprise_id: str | None, team_id: str | None) -> None:
        """Delete the bot's tokens."""
        self._wait(self._store.async_delete_bot(enterprise_id=enterprise_id, team_id=team_id))

    def delete_installation(
        self, *, enterprise_id: str | None, team_id: str | None, user_id: str | None = None
    ) -> None:
        """Delete a person's tokens; without ``user_id`` all tokens."""
        self._wait(
            self._store.async_delete_installation(
                enterprise_id=enterprise_id, team_id=team_id, user_id=user_id
            )
        )

    def delete_all(self, *, enterprise_id: str | None, team_id: str | None) -> None:
        """Delete all tokens of a workspace; without ``team_id`` those of the organization."""
        self._wait(self._store.async_delete_all(enterprise_id=enterprise_id, team_id=team_id))

    def _wait(self, call: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(PATIENCE)
