"""The encryption of a program's jobs: :class:`Encryption`. See ADR 0071."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surelane.encryption.data_keys import DataKeys
from surelane.encryption.envelopes import EVENT, DataKey
from surelane.encryption.keys import Keyring, SealedError
from surelane.encryption.own_connections import OwnConnections
from surelane.encryption.places import Place
from surelane.encryption.sealing import Sealing
from surelane.errors import DatabaseUnavailable, EncryptionFailed, OutcomeUnknown

if TYPE_CHECKING:
    from surelane.calls import Pool


class Encryption(Sealing):
    """Encrypts what a program's queues store: ``Queue(connection, encryption=Encryption(keys, database))``.

    Make one for the whole program. Threads may share it, and a process that was forked may go on with it. It keeps the
    workspaces' data keys for a minute, so most calls ask the database nothing more.
    """

    def __init__(
        self, keys: str | Sequence[str], database: "Pool | Callable[[], Any]", *, on: bool = True
    ) -> None:
        """Take the keys, and a way to the database beside the caller's transactions.

        Args:
            keys: those of the services, ``SURELANE_ENCRYPTION_KEYS``: a list, or a text with commas.
            database: an asyncpg pool, or a function that returns a new connection, or an awaitable of one, of a
                library that the queue takes. The connection is closed after each look.
            on: whether it encrypts. It decrypts in any case.

        Raises:
            EncryptionFailed: there is no key, or one is malformed.
            UnsupportedConnection: ``database`` is something else.
        """
        try:
            keyring = Keyring.read(keys) if isinstance(keys, str) else Keyring(keys)
        except ValueError as error:
            raise EncryptionFailed(str(error)) from None
        if keyring is None:
            raise EncryptionFailed("there is no key: make one with surelane keys new")
        source = OwnConnections(database)
        self.asynchronous = source.asynchronous
        super().__init__(_DataKeys(source, keyring), on=on)

    async def event(
        self, text: str, key: str | None, payload: Mapping[str, Any] | None = None
    ) -> tuple[str, str | None]:
        """Encrypt an event of Slack's, as :meth:`Sealing.event` does."""
        with _translating():
            return await super().event(text, key, payload)

    async def payload(
        self,
        value: Any,  # noqa: ANN401 - any JSON value
        workspace: str | None = None,
        purpose: bytes = EVENT,
        place: Place | None = None,
    ) -> dict[str, Any]:
        """Encrypt a job's payload, as :meth:`Sealing.payload` does."""
        with _translating():
            return await super().payload(value, workspace, purpose, place)

    async def value(self, text: str, workspace: str | None = None, place: Place | None = None) -> str:
        """Encrypt another value of an event, as :meth:`Sealing.value` does."""
        with _translating():
            return await super().value(text, workspace, place)

    async def opened(self, value: Any, place: Place | None = None) -> Any:  # noqa: ANN401 - any JSON value
        """Decrypt a stored JSON value, as :meth:`Sealing.opened` does."""
        with _translating():
            return await super().opened(value, place)


class _DataKeys(DataKeys):
    """Data keys for programs: of several threads or event loops, over any driver."""

    def __init__(self, source: OwnConnections, keys: Keyring) -> None:
        super().__init__(source, keys)
        self._asynchronous = source.asynchronous
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def current(self, workspace: str) -> DataKey:
        """Return the key that encrypts a workspace's values. A coroutine that blocks must not meet a lock."""
        if not self._asynchronous:
            return self.kept(workspace) or await self._look_up(workspace)
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            return self.kept(workspace) or await self._look_up(workspace)


@contextmanager
def _translating() -> Iterator[None]:
    """Raise our errors, of which none says that the job may have been stored: it was not sent yet."""
    try:
        yield
    except SealedError as error:
        raise EncryptionFailed(str(error)) from error
    except OutcomeUnknown as error:
        raise DatabaseUnavailable(str(error)) from error
