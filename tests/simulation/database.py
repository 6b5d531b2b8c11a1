"""The real database of a simulation: one statement at a time, at the loop's time, and empty again for each seed."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from functools import cache
from random import Random
from typing import Any, Protocol

import asyncpg

from surelane_dev.accounts import uri_of
from tests.simulation.virtual import EPOCH, VirtualLoop

SETTINGS = {
    # What another transaction has locked stays locked while a statement waits: they take turns.
    "lock_timeout": "2ms",
    # A plan then depends on nothing that earlier seeds did.
    "plan_cache_mode": "force_generic_plan",
}
CLOCK = """
create or replace function agent.clock() returns timestamptz language sql volatile parallel safe
return pg_catalog.to_timestamp(pg_catalog.current_setting('simulation.now')::float8);
-- Called stable, as a condition without a column then holds before anything else of its query runs.
create function agent.clock_is(_now text, _worker text) returns boolean language plpgsql stable as $$
begin
    perform pg_catalog.set_config('simulation.now', _now, false);
    perform pg_catalog.set_config('surelane.worker', _worker, false);
    return true;
end
$$;
grant execute on function agent.clock_is to public;
"""
TELL = """
create function agent.tell(_channel text, _payload text) returns void language plpgsql volatile as $$
begin
    raise info 'notified % %', _channel, _payload;
end
$$;
grant execute on function agent.tell to public;
do $$
declare _source text;
begin
    for _source in select replace(pg_get_functiondef(oid), 'pg_notify(', 'agent.tell(') from pg_proc
        where pronamespace = 'agent'::regnamespace
        and case when prokind = 'f' then pg_get_functiondef(oid) end like '%pg_notify(%' loop
        execute _source;
    end loop;
end $$
"""
"""Tell of a notification in the answer of its statement: an observer would need a statement of its own to hear of it.

What a subtransaction that is rolled back notifies of is told, too: a wake-up too many.
"""
OURS = """
do $$
declare
    _default record;
begin
    for _default in select d.adrelid::regclass as stored, a.attname as name from pg_attrdef as d
        join pg_attribute as a on a.attrelid = d.adrelid and a.attnum = d.adnum join pg_class as c on c.oid = d.adrelid
        where c.relnamespace = 'agent'::regnamespace and a.attgenerated = ''
        and pg_get_expr(d.adbin, d.adrelid) in ('now()', 'clock_timestamp()') loop
        execute format('alter table %s alter %I set default agent.clock()', _default.stored, _default.name);
    end loop;
end $$
"""
QUICK = """
do $$
declare _function regprocedure;
begin
    for _function in select p.oid::regprocedure from pg_proc as p, unnest(p.proconfig) as setting
        where p.pronamespace = 'agent'::regnamespace and setting like 'lock_timeout=%' loop
        execute format('alter function %s set lock_timeout = ''2ms''', _function);
    end loop;
end $$
"""
TABLES = """
select oid::regclass::text from pg_class where relnamespace = 'agent'::regnamespace and relkind = 'r'
and relname not in ('version', 'migration') order by relname
"""
SEQUENCES = """
select oid::regclass::text from pg_class where relnamespace = 'agent'::regnamespace and relkind = 'S' order by relname
"""
USED = """
select name from unnest($1::text[]) as name join pg_class as c on c.oid = name::regclass
where c.relhassubclass or pg_relation_size(c.oid) > 0
"""
COLUMNS = """
select attrelid::regclass::text as table, string_agg(quote_ident(attname), ', ') as columns from pg_attribute
where attrelid = any($1::text[]::regclass[]) and attnum > 0 and not attisdropped and attgenerated = '' group by attrelid
"""
TOLD = "notified "
CHANGES = re.compile(r"\b(insert into|update agent|delete from)\b")
REAL = re.compile(r'"dead_rows": \d+|"holder": (null|\{[^}]*\})|"at": "[^"]*"')
"""What statements tell of the machine's own work and time."""

_connect = asyncpg.connect


class Hearer(Protocol):
    """A connection that listens."""

    def hear(self, channel: str, payload: str) -> None: ...


class Database:
    """The database as all hosts see it."""

    def __init__(self, admin: str, name: str, loop: VirtualLoop) -> None:
        self.admin, self.name, self.loop = admin, name, loop
        self.down = self.read_only = False
        self.jump = 0.0
        """Seconds by which the server's clock is off."""
        self.restarts = 0
        """How often all connections broke."""
        self.hearers: list[Hearer] = []
        self.random = Random(0)
        self.trace: Callable[[str], None] | None = None
        """Is told of each statement, with its arguments and its answer."""
        self._turn = asyncio.Lock()
        self._observer: Any = None
        self._anchor: Any = None
        """Holds a snapshot, so that the server removes no dead row. When it does depends on its other databases. It
        decides where new rows go, and so the order of rows that a query sorts alike."""
        self._idle: dict[str, list[Any]] = {}
        self._lent: dict[Any, str] = {}
        self._shared: dict[str, Any] = {}
        self._restart = ""
        self._told: list[str] = []
        """What the statement under way has notified of."""
        self.tables: list[str] = []
        self.sequences: list[str] = []
        self._ids: list[int] = []
        self._copied: list[str] = []
        """The tables that the standby has rows of."""
        self._columns: dict[str, str] = {}
        """Of each table, those that are stored as they are given."""

    async def open(self, mutant: Callable[[Any], Awaitable[None]] | None) -> None:
        """Replace the database's clock, put a defect back if one is given, and observe the notifications."""
        with self.loop.real():
            admin = await _connect(self.admin, database=self.name)
            await admin.execute(CLOCK)
            await admin.execute(OURS)
            if mutant is not None:
                await mutant(admin)
            await admin.execute(TELL)
            await admin.execute(QUICK)
            tables, sequences = [
                [row[0] for row in await admin.fetch(query)] for query in (TABLES, SEQUENCES)
            ]
            for table in tables:
                await admin.execute(f"alter table {table} set (autovacuum_enabled = false)")
            await admin.execute("create schema standby")
            for table in tables:
                await admin.execute(f"create table {_copy(table)} (like {table})")
            self._columns = {row["table"]: row["columns"] for row in await admin.fetch(COLUMNS, tables)}
            self._restart = "".join(f"select setval('{each}', 1, false);" for each in sequences)
            self.tables, self.sequences = tables, sequences
            await admin.execute(f"alter database {self.name} set simulation.now = '{EPOCH}'")
            await admin.close()
            self._observer = await self._connected(self.admin)
            self._anchor = await self._connected(self.admin)

    async def begin(self, seed: int) -> None:
        """Begin anew: nothing of an earlier seed is left."""
        self.down = self.read_only = False
        self.jump, self.hearers = 0.0, []
        self.random = Random(f"database {seed}")
        self._turn = asyncio.Lock()
        for connection in list(self._lent):
            await self.give_back(connection)
        for role, connection in self._shared.items():
            self._idle[role].append(connection)
        self._shared = {}
        with self.loop.real():
            await self._anchor.execute("rollback")
            used = await self._used([*self.tables, *map(_copy, self.tables)])
            # Only these, as to empty all takes longer than a seed.
            await self._observer.execute(
                f"truncate {', '.join(used)}; insert into agent.measurement default values; {self._restart}"
            )
            await self._anchor.execute("begin isolation level repeatable read; select")

    async def _used(self, tables: list[str]) -> list[str]:
        """Return those of the tables that have had rows."""
        return [row[0] for row in await self._observer.fetch(USED, tables)]

    async def close(self) -> None:
        with self.loop.real():
            idle = [each for role in self._idle.values() for each in role]
            for connection in (*idle, *self._lent, *self._shared.values(), self._observer, self._anchor):
                await connection.close()

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
        await self.end_transactions()
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

    async def end_transactions(self) -> None:
        """End the transactions that are open, as a restart does."""
        for connection in list(self._lent):
            if connection.is_in_transaction():
                await self.give_back(connection)

    async def see(self, query: str, *arguments: object) -> Any:
        """Return the rows of a query, at once and without faults."""
        return await self.run(self._observer, "fetch", query, arguments)

    async def shared(self, role: str) -> Any:
        """Return the connection that stands for all pools of a role: no statement leaves anything in its session."""
        if role not in self._shared:
            made = await self.lend(role)
            self._shared.setdefault(role, made)
            self._lent.pop(made, None)
        return self._shared[role]

    async def lend(self, role: str) -> Any:
        """Return a connection, as new. A backend that has worked before is many times faster than a new one."""
        with self.loop.real():
            async with self._turn:
                idle = self._idle.setdefault(role, [])
                if idle:
                    made = idle.pop()
                else:
                    uri = uri_of(self.admin, role=role, database=self.name)
                    made = await self._connected(uri)
                self._lent[made] = role
                await made.execute(f"select pg_catalog.setseed({self.random.random()})")
                return made

    def end(self, connection: Any, after: float = 0.0) -> None:
        """Let the server notice that a connection has ended, after some seconds."""

        async def ended() -> None:
            await asyncio.sleep(after)
            await self.give_back(connection)

        self.loop.create_task(ended(), context=Context())

    async def give_back(self, connection: Any) -> None:
        """Drop all that a session holds."""
        with self.loop.real():
            async with self._turn:
                role = self._lent.pop(connection, None)
                if role is not None:
                    if connection.is_in_transaction():
                        await connection.execute("rollback")
                    await connection.execute("reset all; select pg_catalog.pg_advisory_unlock_all()")
                    self._idle[role].append(connection)

    async def run(
        self, connection: Any, method: str, query: str, arguments: Iterable[object] = (), worker: str = ""
    ) -> Any:
        """Run a statement, of a connection that names a worker perhaps, and hand on what it notifies of."""
        with self.loop.real():
            async with self._turn:
                now = str(EPOCH + self.loop.now + self.jump)
                arguments = tuple(arguments)
                if (timed := _timed(query, len(arguments) + 1)) is not None:
                    query, arguments = timed, (*arguments, now, worker)
                else:
                    await connection.execute(
                        f"set simulation.now = '{now}'; set surelane.worker = '{worker}'"
                    )
                answer: Any = None
                try:
                    answer = await getattr(connection, method)(query, *arguments)
                except Exception as error:
                    answer = repr(error)
                    self._told.clear()
                    raise
                else:
                    return answer
                finally:
                    if self.trace is not None:
                        self.trace(REAL.sub("", f"{self.loop.now!r} {method} {query} {arguments} {answer}"))
                    if self._told:
                        self._hand_on()

    def _hand_on(self) -> None:
        told, self._told = dict.fromkeys(self._told), []
        for each in told:
            channel, payload = each.split(" ", 1)
            for hearer in self.hearers:
                hearer.hear(channel, payload)

    async def _connected(self, uri: str) -> Any:
        made = await _connect(
            uri, database=self.name, server_settings=SETTINGS, max_cached_statement_lifetime=0
        )
        made.add_log_listener(self._hear)
        return made

    def _hear(self, _: object, message: Any) -> None:
        if message.message.startswith(TOLD):
            self._told.append(message.message.removeprefix(TOLD))


def _copy(table: str) -> str:
    """Return the name of the standby's table."""
    return table.replace("agent.", "standby.", 1)


@cache
def _timed(query: str, nth: int) -> str | None:
    """Return a query that sets the clock before all else, by an argument, unless it cannot be part of another one."""
    if query.lstrip().startswith(("select", "with")) and not CHANGES.search(query):
        return f"select * from ({query}) as _ where agent.clock_is(${nth}, ${nth + 1})"
    return None
