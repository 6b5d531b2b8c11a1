"""Surelane's installations behind slack-sdk's interfaces: Bolt apps use the store of ingest and workers.

Both stores hand out no refresh tokens: workers refresh tokens, each once.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from logging import Logger
from typing import Any

from slack_sdk.oauth.installation_store import Bot, Installation, InstallationStore
from slack_sdk.oauth.installation_store.async_installation_store import AsyncInstallationStore

from surelane_service.installations import BOT, Installations, Owner, Stored, bot_of, installation_of

Find = Callable[[Owner, str | None], Awaitable[dict[str, Stored]]]


class AsyncInstallations(AsyncInstallationStore):
    """slack-sdk's asynchronous store of installations, in PostgreSQL.

    Without a ``team_id`` an organization is meant. Without a ``user_id`` the latest installation is found, and all
    tokens are deleted.
    """

    def __init__(self, installations: Installations, find: Find | None = None) -> None:
        """``find`` returns an installation's rows with fresh tokens; by default they are as they are stored."""
        self._installations = installations
        self._find = find or installations.find

    @property
    def logger(self) -> Logger:
        """A logger that this class does not use: it logs nothing."""
        return logging.getLogger(__name__)

    async def async_save(self, installation: Installation) -> None:
        await self._installations.save(installation)

    async def async_save_bot(self, bot: Bot) -> None:
        await self._installations.save_bot(bot)

    async def async_find_bot(
        self, *, enterprise_id: str | None, team_id: str | None, is_enterprise_install: bool | None = False
    ) -> Bot | None:
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
        owner = Owner.of(enterprise_id, team_id, is_enterprise_install)
        return None if owner is None else installation_of(await self._find(owner, user_id), user_id)

    async def async_delete_bot(self, *, enterprise_id: str | None, team_id: str | None) -> None:
        await self._delete(enterprise_id, team_id, [BOT])

    async def async_delete_installation(
        self, *, enterprise_id: str | None, team_id: str | None, user_id: str | None = None
    ) -> None:
        await self._delete(enterprise_id, team_id, None if user_id is None else [user_id])

    async def async_delete_all(self, *, enterprise_id: str | None, team_id: str | None) -> None:
        await self._delete(enterprise_id, team_id, None)

    async def _delete(self, enterprise_id: str | None, team_id: str | None, users: list[str] | None) -> None:
        owner = Owner.of(enterprise_id, team_id, is_enterprise_install=False)
        if owner is not None:
            await self._installations.delete(owner, users)


def _blocking(name: str) -> Any:
    """Return a method that waits for the one of that name of the asynchronous store."""

    def call(self: "SyncInstallations", *given: Any, **named: Any) -> Any:
        return self._wait(getattr(self._store, f"async_{name}")(*given, **named))

    return call


class SyncInstallations(InstallationStore):
    """The same for synchronous Bolt apps, whose listeners run in threads. It calls the asynchronous store."""

    def __init__(self, store: AsyncInstallations, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        """``wait`` runs one of the store's calls in another thread's event loop, and returns its value."""
        self._store, self._wait = store, wait

    @property
    def logger(self) -> Logger:
        return self._store.logger

    save = _blocking("save")
    save_bot = _blocking("save_bot")
    find_bot = _blocking("find_bot")
    find_installation = _blocking("find_installation")
    delete_bot = _blocking("delete_bot")
    delete_installation = _blocking("delete_installation")
    delete_all = _blocking("delete_all")
