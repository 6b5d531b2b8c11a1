"""``surelane keys``: make and rotate the keys that encrypt stored tokens and data keys.

A row keeps its previous value until a later pass has opened the new one. See ADR 0066.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import typer

from surelane.calls import Calls, Row
from surelane.codec import SETTING, SealedError
from surelane.errors import DatabaseRefused, Forbidden, SchemaMissing, told
from surelane_encryption.envelopes import DataKey
from surelane_encryption.keys import Keyring, new_key
from surelane_operator.cli.output import say
from surelane_operator.cli.session import Database, ExitCode, Json, failed, run
from surelane_service.installations import Owner

BATCH = 100
"""Rows of one step."""
app = typer.Typer(help=f"Make and rotate the keys of {SETTING}.", no_args_is_help=True)


@app.command("new")
def make_key() -> None:
    """Print a new key for SURELANE_ENCRYPTION_KEYS."""
    print(new_key())


@app.command()
def rotate(database: Database, as_json: Json = False) -> None:
    """Encrypt everything that is stored with the first key of SURELANE_ENCRYPTION_KEYS.

    The services keep running; give all of them the new list first. A rotation that was interrupted goes on when it is
    started again. Once it is done, the other keys can go from the list. What no key of the list opens is left as it is
    and named: a data key is replaced by another one, and a workspace must install the app again. A row that refuses or
    is locked is left and named, too: start it again.
    """
    try:
        keys = Keyring.read(os.environ.get(SETTING, ""))
    except ValueError as error:
        raise failed(f"{SETTING}: {error}", ExitCode.USAGE) from None
    if keys is None:
        raise failed(f"{SETTING} is not set", ExitCode.USAGE)
    rotation = KeyRotation(keys)
    run(database, lambda changes, _: rotation.run(changes.calls), within=None)
    for name, why in rotation.lost.items():
        typer.echo(f"left as it is: {name} ({why})", err=True)
    left = f"{len(rotation.lost)} left as they are" if rotation.lost else "none is left"
    say(
        f"{rotation.sealed} sealed anew with the key {keys.current_id.hex()}; {left}",
        {"sealed": rotation.sealed, "lost": rotation.lost},
        as_json=as_json,
    )
    if rotation.lost:
        raise typer.Exit(ExitCode.FAILED)


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
class KeyRotation:
    """A rotation: how much it has ``sealed``, and by its name why what no key opens was left."""

    keys: Keyring
    sealed: int = 0
    lost: dict[str, str] = field(default_factory=dict)

    async def run(self, calls: Calls) -> None:
        """Seal everything. Services that still have the old list may write meanwhile."""
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
        try:
            stored = await calls.fetchval(table.seal, *key, row["sealed"], anew)
        except DatabaseRefused as error:
            if isinstance(error, (Forbidden, SchemaMissing)):
                raise  # all rows would meet it
            self.lost[table.name(row)] = told(error)
            return False
        if stored and anew is not None:
            self.sealed += 1
            if self.sealed % BATCH == 0 and sys.stderr.isatty():
                typer.echo(f"\r{self.sealed} sealed anew", err=True, nl=False)
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
