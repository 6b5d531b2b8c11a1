"""The workspaces' data keys: made once, kept for a minute, destroyed.

A data key is stored sealed with ``SURELANE_ENCRYPTION_KEYS``. So a rotation of those touches no event. See ADR 0071.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from time import monotonic

from surelane.calls import Calls, Connection, Pool, Row
from surelane.codec import KeyDestroyedError, NoKeyError, SealedError
from surelane.errors import Forbidden
from surelane_encryption.envelopes import DataKey
from surelane_encryption.keys import Keyring

KEPT_FOR = timedelta(minutes=1)
"""How long a data key is used without a look at the database."""
UNUSED_AFTER = KEPT_FOR + timedelta(seconds=15)
"""How long after its retirement no process encrypts with a data key, and what it encrypted before is stored."""
MOST = 5000
"""Data keys that a process keeps."""


class _Kept(OrderedDict[str | bytes, tuple[DataKey, float]]):
    def current(self, name: str | bytes) -> DataKey | None:
        key, until = self.get(name, (None, 0.0))
        return key if until >= monotonic() else None

    def keep(self, name: str | bytes, key: DataKey, until: float) -> None:
        self[name] = key, until
        with suppress(KeyError):  # another thread has just dropped it; a fork could leave a lock locked
            self.move_to_end(name)
        while len(self) > MOST:
            self.popitem(last=False)


class DataKeys:
    """The data keys, on a pool or a connection outside of a transaction. ``keys`` open them.

    Methods raise errors of :mod:`surelane.errors`, and :class:`NoKeyError` where no key of the list opens a data key.
    """

    def __init__(self, database: Pool | Connection | Calls, keys: Keyring) -> None:
        self._database = database if isinstance(database, Calls) else Calls(database, cuts=True)
        self._keys = keys
        self._current, self._by_id = _Kept(), _Kept()
        self._lookups: dict[str, asyncio.Task[DataKey]] = {}

    def kept(self, workspace: str) -> DataKey | None:
        """Return the key that encrypts a workspace's values, if it was looked up within the last minute."""
        return self._current.current(workspace)

    async def current(self, workspace: str) -> DataKey:
        """Return the key that encrypts a workspace's values. Make it if there is none."""
        if (key := self.kept(workspace)) is not None:
            return key
        lookup = self._lookups.get(workspace)
        if lookup is None:
            lookup = self._lookups[workspace] = asyncio.create_task(self._look_up(workspace))
            lookup.add_done_callback(partial(self._looked_up, workspace))
        return await asyncio.shield(lookup)  # one event's cancellation is not the others'

    def _looked_up(self, workspace: str, lookup: asyncio.Task[DataKey]) -> None:
        del self._lookups[workspace]
        if not lookup.cancelled():
            lookup.exception()  # those who wait have it; without any, asyncio would complain

    async def _look_up(self, workspace: str) -> DataKey:
        until = monotonic() + KEPT_FOR.total_seconds()  # from before the look: see UNUSED_AFTER
        row = await self._database.row("data_key", workspace)
        if row is None:
            row = await self._made(DataKey.new(workspace))
        if row is None:
            raise NoKeyError("its workspace's data key is being destroyed: try again")
        key = self._opened(row, workspace)
        self._current.keep(workspace, key, until)
        self._by_id.keep(key.id, key, until)
        return key

    async def _made(self, new: DataKey) -> Row | None:
        """Store a workspace's first data key. Return the stored key, which may be another process's."""
        try:
            return await self._database.row(
                "add_data_key", new.workspace, new.id, self._keys.seal(new.raw, new.place())
            )
        except Forbidden:
            raise NoKeyError(
                f"workspace {new.workspace!r} has no data key yet, and this role makes none. The services make it "
                "when the app is installed, or with the workspace's first event"
            ) from None

    async def by_ids(self, ids: Iterable[bytes]) -> dict[bytes, DataKey]:
        """Return data keys by their ids. One that was destroyed, or that no key of the list opens, is missing."""
        found = {identity: self._by_id.current(identity) for identity in ids}
        missing = [identity for identity, key in found.items() if key is None]
        if missing:
            found.update(await self._look_for(missing))
        return {identity: key for identity, key in found.items() if key is not None}

    async def _look_for(self, ids: Collection[bytes]) -> dict[bytes, DataKey]:
        until = monotonic() + KEPT_FOR.total_seconds()
        found: dict[bytes, DataKey] = {}
        for row in await self._database.rows("find_data_keys", list(ids)):
            try:
                key = self._opened(row, row["workspace"])
            except SealedError:
                continue
            self._by_id.keep(key.id, key, until)
            found[key.id] = key
        return found

    async def why_missing(self, identity: bytes) -> SealedError:
        """Return why a data key cannot be used: it was destroyed, or this process lacks the key that opens it."""
        row = await self._database.row("find_data_keys", [identity])
        if row is None:
            return KeyDestroyedError()
        try:
            self._opened(row, row["workspace"])
        except SealedError as error:
            return error
        return NoKeyError("its data key could not be read: try again")

    def _opened(self, row: Row, workspace: str) -> DataKey:
        sealed = DataKey(row["id"], workspace, b"")
        try:
            return DataKey(sealed.id, workspace, self._keys.open(row["sealed"], sealed.place()))
        except SealedError as error:
            raise NoKeyError(f"its data key cannot be opened: {error}") from None
