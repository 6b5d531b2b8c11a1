"""The real database in virtual time: one statement at a time, at the loop's time, and empty again for each run."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Protocol, Self, cast

import asyncpg

from surelane_dev.accounts import OWNER, uri_of
from surelane_dev.testing.fleets.virtual import EPOCH, VirtualLoop

SETTINGS = {
    # What another transaction has locked stays locked while a statement waits: they take turns.
    "lock_timeout": "2ms",
    # A plan then depends on nothing that earlier runs did.
    "plan_cache_mode": "force_generic_plan",
}
CLOCK = Path(__file__).with_name("clock.sql")
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
TOLD = "notified "
CHANGES = re.compile(r"\b(insert into|update agent|delete from)\b")
LOOKS = re.compile(r"agent\.(watch_sessions|peek_lanes|rescue_events|sweep_events|free_groups|dead_share)\(")
"""Statements that idle workers repeat."""

_connect = asyncpg.connect


class Hearer(Protocol):
    """A connection that listens."""

    def hear(self, channel: str, payload: str) -> None: ...


@dataclass(frozen=True)
class Refusal:
    """What a server in some state does with statements: it refuses them with an SQLSTATE.

    ``late``: after their effect, with the session's end. ``share``: how many of them, from 0 to 1. ``of``: those whose
    text has it.
    """

    sqlstate: str = "25006"
    late: bool = False
    share: float = 1.0
    of: str = "agent."

    def meets(self, query: str, random: Random) -> bool:
        """Return whether it meets a statement."""
        return self.of in query and (self.share == 1 or random.random() < self.share)

    def error(self, severity: str) -> Exception:
        told = {"C": self.sqlstate, "S": severity, "V": severity, "M": f"the server's state: {self.sqlstate}"}
        return cast("Exception", asyncpg.PostgresError.new(told))


class Database:
    """The database as all hosts see it."""

    def __init__(self, admin: str, name: str, loop: VirtualLoop) -> None:
        self.admin, self.name, self.loop = admin, name, loop
        self.down = False
        self.refusal: Refusal | None = None
        self.jump = 0.0
        """Seconds by which the server's clock is off."""
        self.restarts = 0
        """How often all connections broke."""
        self.hearers: list[Hearer] = []
        self.random = Random(0)
        self.worked = asyncio.Event()
        """Is set by each statement of a worker that is not idle."""
        self.serving: set[asyncio.Task[Any]] = set()
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

    @classmethod
    @asynccontextmanager
    async def opened(cls, admin: str, template: str) -> AsyncIterator[Self]:
        """Copy a migrated database for the block, in a virtual loop."""
        loop, name = asyncio.get_running_loop(), f"surelane_virtual_{secrets.token_hex(6)}"
        assert isinstance(loop, VirtualLoop)
        with loop.real():
            server = await _connect(admin)
            copied = f"owner {OWNER} template {template} strategy file_copy"
            await server.execute(f"create database {name} {copied}")
        database = cls(admin, name, loop)
        try:
            await database.open()
            yield database
        finally:
            with loop.real():
                await database.close()
                await server.execute(f"drop database if exists {name} with (force)")
                await server.close()

    async def open(self) -> None:
        """Replace the database's clock, and observe the notifications."""
        with self.loop.real():
            admin = await _connect(self.admin, database=self.name)
            await admin.execute(CLOCK.read_text())
            await self.prepare(admin)
            await admin.execute(f"alter database {self.name} set simulation.now = '{EPOCH}'")
            await admin.close()
            self._observer = await self._connected(self.admin)
            self._anchor = await self._connected(self.admin)

    async def prepare(self, admin: Any) -> None:
        self.tables, self.sequences = [
            [row[0] for row in await admin.fetch(query)] for query in (TABLES, SEQUENCES)
        ]
        for table in self.tables:
            await admin.execute(f"alter table {table} set (autovacuum_enabled = false)")
        self._restart = "".join(f"select setval('{each}', 1, false);" for each in self.sequences)

    async def begin(self, seed: int = 0) -> None:
        """Begin anew: nothing of an earlier run is left."""
        self.down, self.refusal = False, None
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
            used = await self._used(self.tables)
            # Only these, as to empty all takes longer than a run.
            await self._observer.execute(
                f"{self.emptied(used)}; insert into agent.measurement default values; {self._restart}"
            )
            await self._anchor.execute("begin isolation level repeatable read; select")

    def emptied(self, tables: list[str]) -> str:
        """Return what empties tables. To truncate them would make each backend plan all its statements again.

        It waits for locks in real time: a statement that the earlier run gave up may not have ended yet.
        """
        rows = "; ".join(f"delete from {each}" for each in tables)  # noqa: S608 - of ours
        settings = "set local session_replication_role = replica; set local lock_timeout = '60s'"
        return f"begin; {settings}; {rows}; commit"

    async def _used(self, tables: list[str]) -> list[str]:
        return [row[0] for row in await self._observer.fetch(USED, tables)]

    async def close(self) -> None:
        idle = [each for role in self._idle.values() for each in role]
        for connection in (*idle, *self._lent, *self._shared.values(), self._observer, self._anchor):
            if connection is not None:
                await connection.close()

    async def restarted(self) -> None:
        """End all transactions and sessions, and start anew, as a restart does."""
        for connection in list(self._lent):
            if connection.is_in_transaction():
                await self.give_back(connection)
        with self.loop.real():
            async with self._turn:
                for connection in self._lent:
                    await connection.execute("select pg_catalog.pg_advisory_unlock_all()")
        start = int(1000 * (EPOCH + self.loop.now + self.jump))
        await self.see("select setval('agent.server_start', $1)", start)

    async def see(self, query: str, *arguments: object) -> Any:
        """Return the rows of a query, at once and without faults."""
        return await self.run(self._observer, "fetch", query, arguments)

    async def shared(self, role: str) -> Any:
        """Return the connection that stands for all pools of a role: no statement leaves anything in its session."""
        if role not in self._shared:
            made = await self.lend(role)
            if self._shared.setdefault(role, made) is made:
                self._lent.pop(made, None)
            else:
                await self.give_back(made)
        return self._shared[role]

    async def lend(self, role: str) -> Any:
        """Return a connection, as new. A backend that has worked before is many times faster than a new one."""
        with self.loop.real():
            async with self._turn:
                idle = self._idle.setdefault(role, [])
                if idle:
                    made = idle.pop()
                else:
                    made = await self._connected(uri_of(self.admin, role=role, database=self.name))
                self._lent[made] = role
                await made.execute(f"select pg_catalog.setseed({self.random.random()})")
                return made

    def end(self, connection: Any, after: float = 0.0) -> None:
        """Let the server notice that a connection has ended, after some seconds."""

        async def ended() -> None:
            await asyncio.sleep(after)
            await self.give_back(connection)

        self.serve(ended())

    def serve(self, what: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do something as the server does, also after its clients are gone."""
        task = self.loop.create_task(what, context=Context())
        self.serving.add(task)
        task.add_done_callback(self.serving.discard)
        return task

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
                try:
                    return await getattr(connection, method)(query, *arguments)
                except Exception:
                    self._told.clear()
                    raise
                finally:
                    if connection is not self._observer and not LOOKS.search(query):
                        self.worked.set()
                    if self._told:
                        self._hand_on()

    def _hand_on(self) -> None:
        told, self._told = dict.fromkeys(self._told), []
        for each in told:
            channel, payload = each.split(" ", 1)
            for hearer in self.hearers:
                hearer.hear(channel, payload)

    async def _connected(self, uri: str) -> Any:
        given: Any = {"server_settings": SETTINGS, "max_cached_statement_lifetime": 0}
        made = await _connect(uri, database=self.name, **given)
        made.add_log_listener(self._hear)
        return made

    def _hear(self, _: object, message: Any) -> None:
        if message.message.startswith(TOLD):
            self._told.append(message.message.removeprefix(TOLD))


@cache
def _timed(query: str, nth: int) -> str | None:
    """Return a query that sets the clock before all else, by an argument, unless it cannot be part of another one."""
    if query.lstrip().startswith(("select", "with")) and not CHANGES.search(query):
        return f"select * from ({query}) as _ where agent.clock_is(${nth}, ${nth + 1})"  # noqa: S608 - of ours
    return None
