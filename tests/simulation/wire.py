"""Connections between simulated hosts and the real database, with a network that a seed makes slow or broken."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import Any

import asyncpg

from surelane.calls import Connection
from surelane_dev.accounts import uri_of
from tests.simulation.virtual import EPOCH, VirtualLoop

HERE: ContextVar["Host"] = ContextVar("host")
"""The host that the current task runs on."""
CHANNELS = ("agent_event", "agent_cancel")
HANGS = 15.0
"""Seconds that a broken network hides an answer for."""

CLOCK = """
create or replace function agent.clock() returns timestamptz language sql volatile parallel safe
return pg_catalog.to_timestamp(pg_catalog.current_setting('simulation.now')::float8);
"""

_connect = asyncpg.connect


@dataclass
class Faults:
    """How often a statement meets each fault, from 0 to 1."""

    lost_request: float = 0.0
    """The connection breaks before the server gets the statement."""
    lost_answer: float = 0.0
    """It breaks after the server has carried the statement out."""
    slow: float = 0.0
    """The statement, or its answer, takes seconds."""


@dataclass(eq=False)
class Host:
    """A machine with one process on it."""

    name: str
    alive: bool = True
    cut_off: bool = False
    """Whether the network hides it: its statements and their answers take until it is back."""
    wires: list["Wire"] = field(default_factory=list)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def die(self) -> None:
        """End the process as ``kill -9`` does. What it does in its last moments reaches no other host."""
        self.alive = False
        for wire in list(self.wires):
            await wire.end()
        while left := [task for task in self.tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1)


def with_host(
    loop: asyncio.AbstractEventLoop, what: Coroutine[Any, Any, Any], **given: Any
) -> asyncio.Task[Any]:
    """Make a task, and note on which host it runs."""
    context = given.get("context")
    host = HERE.get(None) if context is None else context.get(HERE)
    task = asyncio.Task(what, loop=loop, **given)
    if host is not None:
        host.tasks.add(task)
        task.add_done_callback(host.tasks.discard)
    return task


@dataclass(eq=False)
class Database:
    """The database as all hosts see it: one statement at a time, at the loop's time."""

    admin: str
    name: str
    loop: VirtualLoop
    random: Random
    log: Callable[[str], None]
    faults: Faults = field(default_factory=Faults)
    down: bool = False
    read_only: bool = False
    jump: float = 0.0
    """Seconds by which the server's clock is off."""

    def __post_init__(self) -> None:
        self._turn = asyncio.Lock()
        self._observer: Any = None
        self._wires: list[Wire] = []

    async def open(self, mutant: Callable[[Any], Awaitable[None]] | None = None) -> None:
        """Replace the database's clock, put a defect back if one is given, and observe the notifications."""
        with self.loop.real():
            admin = await _connect(self.admin, database=self.name)
            await admin.execute(CLOCK)
            if mutant is not None:
                await mutant(admin)
            await admin.execute(f"alter database {self.name} set simulation.now = '{EPOCH}'")
            await admin.close()
            self._observer = await _connect(self.admin, database=self.name)
            for channel in CHANNELS:
                await self._observer.add_listener(channel, self._notified)

    async def close(self) -> None:
        for wire in self._wires:
            await wire.end()
        with self.loop.real():
            await self._observer.close()

    async def see(self, query: str, *arguments: object) -> Any:
        """Return the rows of a query, at once and without faults."""
        return await self.run(self._observer, "fetch", query, arguments)

    async def connection(self, role: str) -> Any:
        with self.loop.real():
            async with self._turn:
                uri = uri_of(self.admin, role=role, database=self.name)
                made = await _connect(uri)
                await made.execute(f"select pg_catalog.setseed({self.random.random()})")
                return made

    async def run(self, connection: Any, method: str, query: str, arguments: tuple[object, ...]) -> Any:
        """Run a statement, and hand on what it notifies of."""
        with self.loop.real():
            async with self._turn:
                now = str(EPOCH + self.loop.now + self.jump)
                await connection.execute("select pg_catalog.set_config('simulation.now', $1, false)", now)
                try:
                    return await getattr(connection, method)(query, *arguments)
                finally:
                    await self._observer.execute("select")

    def delay(self) -> float:
        """Return how long something takes on the network."""
        usual = self.random.uniform(0.0005, 0.01)
        return self.random.uniform(0.2, 4.0) if self.random.random() < self.faults.slow else usual

    def _notified(self, _: object, __: object, channel: str, payload: str) -> None:
        for wire in self._wires:
            if channel in wire.heard and not wire.is_closed() and not wire.host.cut_off:
                self.loop.call_later(self.delay(), wire.notify, channel, payload)

    async def restart(self, seconds: float) -> None:
        """Be away for some seconds. All connections break, and with them the workers' sessions."""
        self.down = True
        for wire in list(self._wires):
            await wire.end()
        await asyncio.sleep(seconds)
        self.down = False

    def know(self, wire: "Wire") -> None:
        self._wires = [each for each in self._wires if not each.is_closed()]
        self._wires.append(wire)


class Wire(Connection):
    """A connection of a simulated host. It opens itself again if it stands for a pool (``kept``)."""

    def __init__(self, database: Database, host: Host, role: str, *, within: float, kept: bool) -> None:
        self.database = database
        self.host = host
        self.heard: dict[str, Any] = {}
        self._role = role
        self._within = within
        self._kept = kept
        self._real: Any = None
        self._closed = False
        self._busy = asyncio.Lock()
        self._on_end: list[Callable[[Any], None]] = []
        host.wires.append(self)
        database.know(self)

    def __del__(self) -> None: ...

    async def fetch(self, query: str, *args: object, timeout: float | None = None, **_: Any) -> Any:
        return await self._ask("fetch", query, args, timeout)

    async def fetchrow(self, query: str, *args: object, timeout: float | None = None, **_: Any) -> Any:
        return await self._ask("fetchrow", query, args, timeout)

    async def fetchval(self, query: str, *args: object, timeout: float | None = None, **_: Any) -> Any:
        return await self._ask("fetchval", query, args, timeout)

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> Any:
        return await self._ask("execute", query, args, timeout)

    def is_closed(self) -> bool:
        return self._closed

    def is_in_transaction(self) -> bool:
        return False

    def add_termination_listener(self, callback: Any) -> None:
        self._on_end.append(callback)

    def remove_termination_listener(self, callback: Any) -> None:
        if callback in self._on_end:
            self._on_end.remove(callback)

    async def add_listener(self, channel: str, callback: Any) -> None:
        await self._ask("execute", "select", (), None)
        self.heard[channel] = callback

    async def remove_listener(self, channel: str, _: Any) -> None:
        await self._ask("execute", "select", (), None)
        self.heard.pop(channel, None)

    def notify(self, channel: str, payload: str) -> None:
        if channel in self.heard and not self._closed:
            self.heard[channel](self, 0, channel, payload)

    async def open(self) -> None:
        """Connect.

        Raises:
            OSError, TimeoutError: the server or the network is away.
        """
        await self._travel(self._within)
        if self.database.down or not self.host.alive:
            raise ConnectionRefusedError("the server is away")
        self._real = await self.database.connection(self._role)

    async def close(self, **_: float | None) -> None:
        await self.end()

    def terminate(self) -> None:
        if not self._closed:
            self.database.loop.create_task(self.end(), context=Context())

    async def end(self) -> None:
        """Break the connection. The server notices at once."""
        real, self._real = self._real, None
        told = not self._closed and self.host.alive
        self._closed = not self._kept or not self.host.alive
        if real is not None:
            with self.database.loop.real():
                async with self.database._turn:  # noqa: SLF001 - the two are one
                    await real.close()
        if told and self._closed:
            for callback in self._on_end:
                callback(self)

    async def _travel(self, within: float) -> None:
        until = self.database.loop.now + within
        await asyncio.sleep(self.database.delay())
        while self.host.cut_off:
            if self.database.loop.now > until:
                raise TimeoutError
            await asyncio.sleep(0.5)

    async def _ask(
        self, method: str, query: str, arguments: tuple[object, ...], timeout: float | None
    ) -> Any:
        within = min(timeout or self._within, self._within)
        try:
            async with asyncio.timeout(within):
                async with nullcontext() if self._kept else self._busy:
                    return await self._answered(method, query, arguments, within)
        except TimeoutError:
            if not self._kept:
                await self.end()
            raise

    async def _answered(self, method: str, query: str, arguments: tuple[object, ...], within: float) -> Any:
        database, faults, random = self.database, self.database.faults, self.database.random
        if self._closed or not self.host.alive:
            raise asyncpg.InterfaceError("connection is closed")
        if self._real is None:
            await self.open()
        await self._travel(within)
        if database.down or self._real is None or random.random() < faults.lost_request:
            return await self._break()
        if database.read_only and "agent." in query:
            raise asyncpg.ReadOnlySQLTransactionError("cannot execute in a read-only transaction")
        # The server goes on with a statement whose client is gone.
        serving = database.run(self._real, method, query, arguments)
        running = database.loop.create_task(serving, context=Context())
        running.add_done_callback(_retrieve)
        answer = await asyncio.shield(running)
        if random.random() < faults.lost_answer:
            database.log(f"{self.host.name}: the answer is lost of: {query[:70]}")
            return await self._break()
        await self._travel(within)
        if self._real is None and not self._kept:
            return await self._break()
        return answer

    async def _break(self) -> Awaitable[None]:
        await self.end()
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
