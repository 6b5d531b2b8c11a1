"""The encryption of a program's jobs: :class:`Encryption`. See ADR 0071."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surelane import errors
from surelane.calls import Calls, Row
from surelane.codec import Location, SealedError
from surelane.drivers import Driver, async_driver, sync_driver
from surelane_encryption.data_keys import DataKeys
from surelane_encryption.envelopes import DataKey
from surelane_encryption.keys import Keyring
from surelane_encryption.sealing import Sealing

if TYPE_CHECKING:
    from surelane.calls import Pool

_LIBRARIES = frozenset(("asyncpg", "psycopg", "sqlalchemy", "django"))
_LENT_WITHIN = 30
"""Seconds. The caller may hold the pool's last connection, and would wait for itself."""


class OwnConnections(Calls):
    """Calls, each on a connection that is made or lent for it, and committed at once.

    ``asynchronous``: whether calls suspend their caller for sure.
    """

    def __init__(self, source: Any) -> None:  # noqa: ANN401 - see below
        """Take an asyncpg pool, or a function that returns a new connection, or an awaitable of one."""
        self._pool: Any = source if hasattr(source, "acquire") else None
        if self._pool is None and not callable(source):
            raise errors.UnsupportedConnection(
                f"data keys need an asyncpg pool, or a function that returns a new connection, not a"
                f" {type(source).__module__}.{type(source).__qualname__}"
            )
        self._connect: Callable[[], Any] = source
        self.asynchronous = self._pool is not None or iscoroutinefunction(source)

    async def fetch(self, query: str, *arguments: object, within: float | None = None) -> list[Row]:  # noqa: ARG002
        async with self._driver() as driver:
            return list(await driver.fetch(query, *arguments))  # type: ignore[arg-type]  # rows of any driver

    @asynccontextmanager
    async def _driver(self) -> AsyncIterator[Driver]:
        with _translating():
            if self._pool is not None:
                async with self._pool.acquire(timeout=_LENT_WITHIN) as connection:
                    yield async_driver(connection)
                return
            made = self._connect()
            connection = await made if isawaitable(made) else made
            driver = async_driver(connection) if isawaitable(made) else sync_driver(connection)
            if _in_transaction(connection):
                raise errors.UnsupportedConnection(
                    "data keys need a new connection: this one is in a transaction, whose rollback would"
                    " take a key away that other events already have"
                )
            try:
                yield driver
                await _done(getattr(connection, "commit", None))
            finally:
                await _done(connection.close)


async def _done(method: Callable[[], Any] | None) -> None:
    """Call a method that may be a coroutine function."""
    answer = None if method is None else method()
    if isawaitable(answer):
        await answer


def _in_transaction(connection: Any) -> bool:  # noqa: ANN401 - any library's
    """Return whether a connection is in a transaction, as its library says."""
    for name in ("in_transaction", "is_in_transaction"):  # SQLAlchemy, asyncpg
        if hasattr(connection, name):
            return bool(getattr(connection, name)())
    if hasattr(connection, "in_atomic_block"):  # Django
        return bool(connection.in_atomic_block)
    return bool(connection.info.transaction_status)  # psycopg: 0 is idle


@contextmanager
def _translating() -> Iterator[None]:
    """Raise our error where a connection cannot be made, committed or closed."""
    try:
        yield
    except errors.SurelaneError:
        raise
    except Exception as error:
        libraries = {base.__module__.partition(".")[0] for base in type(error).__mro__}
        if libraries & _LIBRARIES or isinstance(error, OSError | EOFError):
            raise errors.DatabaseUnavailable(f"{type(error).__name__}: {error}") from error
        raise


@contextmanager
def _failing() -> Iterator[None]:
    """Raise our errors. None says that the job may have been stored: it was not sent yet."""
    try:
        yield
    except SealedError as error:
        raise errors.EncryptionFailed(str(error)) from error
    except errors.OutcomeUnknown as error:
        raise errors.DatabaseUnavailable(str(error)) from error


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
            raise errors.EncryptionFailed(str(error)) from None
        if keyring is None:
            raise errors.EncryptionFailed("there is no key: make one with surelane keys new")
        source = OwnConnections(database)
        self.asynchronous = source.asynchronous
        super().__init__(_DataKeys(source, keyring), on=on)

    async def _key(self, workspace: str) -> DataKey:
        with _failing():
            return await super()._key(workspace)

    async def _text(self, value: Mapping[str, Any], purpose: bytes | None, at: Location | None = None) -> str:
        with _failing():
            return await super()._text(value, purpose, at)


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
