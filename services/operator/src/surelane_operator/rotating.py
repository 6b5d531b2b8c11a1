"""Encrypt the stored tokens and data keys with the first of ``SURELANE_ENCRYPTION_KEYS``.

A row keeps its previous value until a later pass has opened the new one. See ADR 0066.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from surelane.calls import Calls, Connection, Row
from surelane.encryption.envelopes import DataKey
from surelane.encryption.keys import Keyring, SealedError
from surelane_service.installations import Owner

BATCH = 100
"""Rows of one step."""


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows to seal: their key's columns and the place in front of the first one, their statements and their names."""

    key: tuple[str, ...]
    first: tuple[object, ...]
    rows: str
    seal: str
    place: Callable[[Row], str]
    name: Callable[[Row], str]
    leave: str | None = None


_TABLES = (
    _Table(
        ("owner_id", "enterprise_wide", "user_id"),
        ("", False, ""),
        "select * from agent.installations_to_seal($1, $2, $3, $4)",
        "select agent.seal_installation($1, $2, $3, $4, $5)",
        lambda row: Owner(row["owner_id"], row["enterprise_wide"]).place(row["user_id"]),
        lambda row: f"installation of {row['owner_id']}, {row['user_id'] or 'bot'}: install the app again",
    ),
    _Table(
        ("id",),
        (b"",),
        "select * from agent.data_keys_to_seal($1, $2)",
        "select agent.seal_data_key($1, $2, $3)",
        lambda row: DataKey(row["id"], row["workspace"], b"").place(),
        lambda row: f"data key {row['id'].hex()} of workspace {row['workspace']!r}: it gets another one",
        "select agent.leave_data_key($1, $2)",
    ),
)


@dataclass(slots=True)
class Rotation:
    """A rotation, on a connection of the role ``agent_operator``. ``told`` gets the count after each row.

    ``lost`` says why what no key of the list opens was left, by its name.
    """

    connection: Connection
    keys: Keyring
    told: Callable[[int], None] = lambda _: None
    sealed: int = 0
    lost: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        """Seal everything. Services that still have the old list may write meanwhile."""
        calls = Calls(self.connection)
        for table in _TABLES:
            while await self._pass(calls, table):
                pass

    async def _pass(self, calls: Calls, table: _Table) -> bool:
        """Go through a table from its top. Return whether a row was to be changed; another pass confirms it."""
        after, changed = table.first, False
        while rows := await calls.fetch(table.rows, BATCH, *after):
            for row in rows:
                changed |= await self._seal(calls, table, row)
            after = tuple(rows[-1][name] for name in table.key)
        return changed

    async def _seal(self, calls: Calls, table: _Table, row: Row) -> bool:
        key = [row[name] for name in table.key]
        try:
            anew = self._sealed_anew(row, table.place(row))
        except SealedError as error:
            self.lost[table.name(row)] = str(error)
            if table.leave is not None:
                await calls.fetch(table.leave, *key, row["sealed"])
            return False
        if anew is None and row["previous"] is None:
            return False
        stored = await calls.fetchval(table.seal, *key, row["sealed"], anew)
        if stored and anew is not None:
            self.sealed += 1
            self.told(self.sealed)
        return True

    def _sealed_anew(self, row: Row, place: str) -> bytes | None:
        """Return a row's value sealed with the first key; ``None``: the stored one is, and opens."""
        try:
            plain = self.keys.open(row["sealed"], place)
        except SealedError:
            if row["previous"] is None:
                raise
            plain = self.keys.open(row["previous"], place)
        else:
            if self.keys.is_current(row["sealed"]):
                return None
        return self.keys.seal(plain, place)
