"""Connections between simulated hosts and the real database, with a network that may be slow or broken."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial, partialmethod
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import asyncpg
from asyncpg.types import ServerVersion

from surelane.calls import Connection
from surelane_dev.testing.fleets.database import Database
from surelane_dev.testing.fleets.virtual import HERE, Process, VirtualLoop

NOTICED = 30.0
"""Seconds after which the server notices that the other end of a connection is gone."""
LOCKED = 0.5
"""Seconds that a statement waits for another transaction's lock before it fails."""


@dataclass(frozen=True)
class FaultRates:
    """How often a statement meets each fault, from 0 to 1."""

    lost_request: float = 0.0
    """The connection breaks before the server gets the statement."""
    lost_answer: float = 0.0
    """It breaks after the server has carried the statement out."""
    slow: float = 0.0
    """The statement, or its answer, takes seconds."""


@dataclass(eq=False)
class Net:
    """The network between all hosts and the database."""

    database: Database
    random: Random
    log: Callable[[str], object] = lambda _: None
    faults: FaultRates = FaultRates()
    hosts: "list[Host]" = field(default_factory=list)

    def delay(self) -> float:
        """Return how long something takes on the network."""
        usual = self.random.uniform(0.0005, 0.01)
        return self.random.uniform(0.2, 4.0) if self.random.random() < self.faults.slow else usual

    async def connect(self, _: str, **given: Any) -> "Wire":
        """Connect the host of the current task, in place of :func:`asyncpg.connect`."""
        within = given["timeout"]
        wire = Wire(self, cast("Host", HERE.get()), "surelane_worker", within=within, kept=False)
        await wire.open()
        return wire

    async def restart(self, seconds: float) -> None:
        """Restart the database, which is away for some seconds. All connections break."""
        self.database.down = True
        self.lose_connections()
        await self.database.restarted()
        await asyncio.sleep(seconds)
        self.database.down = False

    def lose_connections(self) -> None:
        """Break all connections."""
        self.database.restarts += 1
        for host in self.hosts:
            for wire in host.wires:
                wire.end()


class Host(Process):
    """A machine with one process on it."""

    def __init__(self, name: str, skew: float = 0.0) -> None:
        super().__init__(skew)
        self.name = name
        self.alive = True
        self.cut_off = False
        """Whether the network hides it: its statements and their answers take until it is back."""
        self.wires: list[Wire] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.numbers = count()
        """Of its tasks."""

    def half_open(self) -> None:
        """Let all open connections become half-open: all that they carry vanishes, and nothing closes them."""
        for wire in self.wires:
            wire.half_open = wire.is_open()

    async def die(self, noticed: float = 0.0) -> None:
        """End the process as ``kill -9`` does. What it does in its last moments reaches no other host.

        ``noticed``: seconds after which the server notices it. It takes long if the machine is gone.
        """
        self.alive = False
        for wire in self.wires:
            wire.end(noticed)
        self.thaw()
        while left := [task for task in self.tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1)


class HostTask(asyncio.Task[Any]):
    """A task of a host. Its place in a set follows from its number, not from its address."""

    def __init__(self, what: Coroutine[Any, Any, Any], host: Host, **given: Any) -> None:
        self._number = next(host.numbers)
        super().__init__(what, **given)
        host.tasks.add(self)
        self.add_done_callback(host.tasks.discard)

    def __hash__(self) -> int:
        return self._number


def with_host(loop: VirtualLoop, what: Coroutine[Any, Any, Any], **given: Any) -> asyncio.Task[Any]:
    """Make a task, and note on which host it runs."""
    context = given.get("context")
    host = HERE.get(None) if context is None else context.get(HERE)
    if isinstance(host, Host):
        return HostTask(what, host, loop=loop, **given)
    return asyncio.Task(what, loop=loop, **given)


class Wire(Connection):
    """A connection of a simulated host. It opens itself again if it stands for a pool (``kept``)."""

    def __init__(
        self, net: Net, host: Host, role: str, *, within: float, kept: bool, worker: str = ""
    ) -> None:
        self.net, self.host, self.half_open = net, host, False
        self._database = net.database
        self._heard: dict[str, Any] = {}
        self._role, self._within, self._kept, self._worker = role, within, kept, worker
        self._real: Any = None
        self._closed = False
        self._busy = asyncio.Lock()
        self._on_end: list[Callable[[Any], None]] = []
        host.wires = [wire for wire in host.wires if not wire.is_closed()]
        host.wires.append(self)
        net.hosts = [each for each in net.hosts if each.alive]
        if host not in net.hosts:
            net.hosts.append(host)

    def __del__(self) -> None: ...

    def get_server_version(self) -> ServerVersion:
        """Return a version without settings that a new connection would have to lift."""
        return ServerVersion(16, 0, 0, "final", 0)

    def is_closed(self) -> bool:
        return self._closed

    def is_open(self) -> bool:
        return self._real is not None

    def is_in_transaction(self) -> bool:
        return False

    def transaction(self, **_: Any) -> Any:
        assert not self._kept, "all pools of a role share a connection"
        return SimpleNamespace(start=partial(self.execute, "begin"), commit=partial(self.execute, "commit"))

    def add_termination_listener(self, callback: Any) -> None:
        self._on_end.append(callback)

    def remove_termination_listener(self, callback: Any) -> None:
        if callback in self._on_end:
            self._on_end.remove(callback)

    async def add_listener(self, channel: str, callback: Any) -> None:
        await self.execute("select")
        self._heard[channel] = callback
        if self not in self._database.hearers:
            self._database.hearers.append(self)

    async def remove_listener(self, channel: str, _: Any) -> None:
        await self.execute("select")
        self._heard.pop(channel, None)

    def hear(self, channel: str, payload: str) -> None:
        """Get a notification from the server."""
        if channel in self._heard and not self._closed and not self.half_open and not self.host.cut_off:
            context = Context()
            context.run(HERE.set, self.host)
            loop = asyncio.get_running_loop()
            loop.call_later(self.net.delay(), self._notify, channel, payload, context=context)

    def _notify(self, channel: str, payload: str) -> None:
        if channel in self._heard and not self._closed:
            self._heard[channel](self, 0, channel, payload)

    async def open(self) -> None:
        """Connect. Raises OSError, TimeoutError: the server or the network is away."""
        await self._travel(self._within)
        if self._database.down or not self.host.alive:
            raise ConnectionRefusedError("the server is away")
        opening = self._database.shared if self._kept else self._database.lend
        real = await asyncio.shield(self._database.serve(opening(self._role)))
        if self._closed:
            self._real = real
            self.end()
            raise ConnectionRefusedError("the process has ended")
        self._real = real

    async def close(self, **_: float | None) -> None:
        self.end()

    def terminate(self) -> None:
        if not self._closed:
            self.end()

    def end(self, noticed: float = 0.0) -> None:
        """Break the connection. The server notices after some seconds."""
        real, self._real = self._real, None
        told = not self._closed and self.host.alive
        self._closed = not self._kept or not self.host.alive
        if real is not None and not self._kept:
            self._database.end(real, max(noticed, NOTICED if self.half_open or self.host.cut_off else 0.0))
        self.half_open = False
        if self._closed and self in self._database.hearers:
            self._database.hearers.remove(self)
        if told and self._closed:
            for callback in list(self._on_end):
                callback(self)

    async def _travel(self, within: float) -> None:
        until = self._database.loop.now + within
        await asyncio.sleep(self.net.delay())
        while self.host.cut_off or self.half_open:
            if self._database.loop.now > until:
                raise TimeoutError
            await asyncio.sleep(0.5)

    async def _ask(
        self, method: str, query: str, *arguments: object, timeout: float | None = None, **_: Any
    ) -> Any:
        within = min(timeout or self._within, self._within)
        try:
            async with asyncio.timeout(within):
                async with nullcontext() if self._kept else self._busy:
                    return await self._answered(method, query, arguments, within)
        except TimeoutError:
            self.end()
            raise

    fetch = partialmethod(_ask, "fetch")
    fetchrow = partialmethod(_ask, "fetchrow")
    fetchval = partialmethod(_ask, "fetchval")
    execute = partialmethod(_ask, "execute")

    async def _answered(self, method: str, query: str, arguments: tuple[object, ...], within: float) -> Any:
        database, faults, random = self._database, self.net.faults, self.net.random
        if self._closed or not self.host.alive:
            raise asyncpg.InterfaceError("connection is closed")
        if self._real is None:
            await self.open()
        await self._travel(within)
        if database.down or self._real is None or random.random() < faults.lost_request:
            self._break()
        refusal = database.refusal
        if refusal is not None and not refusal.meets(query, random):
            refusal = None
        if refusal is not None and not refusal.late:
            raise refusal.error("ERROR")
        restarts = database.restarts
        # The server goes on with a statement whose client is gone.
        running = database.serve(database.run(self._real, method, query, arguments, self._worker))
        running.add_done_callback(_retrieve)
        try:
            answer = await asyncio.shield(running)
        except asyncpg.LockNotAvailableError:
            await asyncio.sleep(LOCKED)
            raise
        if refusal is not None:
            self.end()
            raise refusal.error("FATAL")
        if random.random() < faults.lost_answer:
            self.net.log(f"{self.host.name}: the answer is lost of: {query[:70]}")
            self._break()
        await self._travel(within)
        if database.restarts > restarts or (self._real is None and not self._kept):
            self._break()
        return answer

    def _break(self) -> NoReturn:
        self.end()
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
