"""The database of a simulation, with a standby that may take over, and with a trace of its statements."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from surelane_dev.testing.fleets import database

COLUMNS = """
select attrelid::regclass::text as table, string_agg(quote_ident(attname), ', ') as columns from pg_attribute
where attrelid = any($1::text[]::regclass[]) and attnum > 0 and not attisdropped and attgenerated = '' group by attrelid
"""
REAL = re.compile(r'"dead_rows": \d+|"holder": (null|\{[^}]*\})|"at": "[^"]*"')
"""What statements tell of the machine's own work and time."""


class Database(database.Database):
    """The database as all hosts see it."""

    trace: Callable[[str], None] | None = None
    """Is told of each statement, with its arguments and its answer."""
    _ids: list[int]
    _copied: list[str]
    """The tables that the standby has rows of."""
    _columns: dict[str, str]
    """The columns of each table that are stored as they are given."""

    async def prepare(self, admin: Any) -> None:
        await super().prepare(admin)
        await admin.execute("create schema standby")
        for table in self.tables:
            await admin.execute(f"create table {_copy(table)} (like {table})")
        self._columns = {row["table"]: row["columns"] for row in await admin.fetch(COLUMNS, self.tables)}

    def emptied(self, tables: list[str]) -> str:
        """Let nothing of an earlier seed decide where rows go, and so in which order a query returns what ties."""
        return f"truncate {', '.join([*tables, *map(_copy, self.tables)])}"

    async def snapshot(self) -> None:
        """Copy all rows, as they reach a standby."""
        with self.loop.real():
            async with self._turn:
                values = ", ".join(f"(select last_value from {each})" for each in self.sequences)
                self._ids = list(await self._observer.fetchrow(f"select {values}"))
                self._copied = await self._used(self.tables)
                copies = [
                    f"delete from {_copy(each)}; insert into {_copy(each)} select * from {each}"
                    for each in self._copied
                ]
                await self._observer.execute("; ".join(copies))

    async def take_over(self) -> None:
        """Go back to the copied rows. Sequences are a little ahead of them, as those of a standby are."""
        await self.restarted()
        ahead = "".join(
            f"select setval('{each}', {last + 32});"
            for each, last in zip(self.sequences, self._ids, strict=True)
        )
        with self.loop.real():
            async with self._turn:
                emptied = "".join(f"delete from {each};" for each in await self._used(self.tables))
                rows = "".join(
                    f"insert into {each} ({self._columns[each]}) overriding system value"
                    f" select {self._columns[each]} from {_copy(each)};"
                    for each in self._copied
                )
                await self._observer.execute(
                    f"begin; set local session_replication_role = replica; {emptied} {rows} {ahead} commit"
                )

    async def run(
        self, connection: Any, method: str, query: str, arguments: Iterable[object] = (), worker: str = ""
    ) -> Any:
        answer: Any = None
        try:
            answer = await super().run(connection, method, query, arguments, worker)
        except Exception as error:
            answer = repr(error)
            raise
        else:
            return answer
        finally:
            if self.trace is not None:
                self.trace(REAL.sub("", f"{self.loop.now!r} {method} {query} {arguments} {answer}"))


def _copy(table: str) -> str:
    """Return the name of the standby's table."""
    return table.replace("agent.", "standby.", 1)
