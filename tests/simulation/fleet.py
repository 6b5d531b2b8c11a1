"""A simulated fleet: ingest stores events, workers come, go, hang and die, and at the end every promise is checked.

What must hold for every seed:

- An acknowledged event ends once: there is one row of it in history.
- The events of a group begin in the order in which they happened, if they were stored in that order. No two of its
  handlers run at once on hosts whose network and process were well.
- A kind with a limit runs at most so many handlers at once on such hosts.
- A step whose result was stored is not run again.
- Once the trouble is over, no claim stands without a hand for longer than :data:`RESCUED` seconds.
- Once the trouble is over, everything ends within :data:`BOUND` seconds.
"""

import asyncio
import json
import random as standard_random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations
from random import Random
from typing import Any, cast

import asyncpg

from surelane.events import Inserted
from surelane_dev.accounts import OWNER
from surelane_ingest.connections import Connections
from surelane_ingest.writer import Writer
from surelane_worker.assembly import Pools, Worker
from surelane_worker.duties import beside
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.tracing import Observer
from surelane_worker.worker_settings import WorkerSettings
from tests.databases import Server
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.virtual import EPOCH, VirtualLoop
from tests.simulation.wire import HERE, Database, Faults, Host, Wire, with_host
from tests.simulation.witness import BrokenError, Witness

TROUBLE = 90.0
"""Seconds for which things break."""
BOUND = 900.0
"""Seconds in which all ends once the trouble is over. A lease that the clock's jump prolonged may have to end."""
RESCUED = 45.0
"""Seconds: longer than the grace of a lost session, which triples while most sessions are lost."""
LEASE = 600.0
ILL = 60.0
"""Seconds after a host's trouble in which its handlers may still run what others have taken over."""
GROUPS = ("red", "green", "blue")
SETTINGS = {
    "DATABASE_URL": "postgresql://simulated",
    "SURELANE_LEASE": f"{LEASE:g}s",
    "SURELANE_CONCURRENCY": "3",
    "SURELANE_BACKOFF_BASE": "2s",
    "SURELANE_BACKOFF_CAP": "20s",
    "SURELANE_MAX_ATTEMPTS": "50",
    "SURELANE_DRAIN_TIMEOUT": "10s",
    "SURELANE_MAX_VT_AGE": "1d",
}


@dataclass(eq=False)
class Fleet:
    """One simulation."""

    seed: int
    loop: VirtualLoop
    database: Database
    random: Random
    log: Callable[[str], None]
    mutant: Mutant | None = None

    def __post_init__(self) -> None:
        self.witness = Witness(self.random, self.is_well, self.log)
        self.acknowledged: list[str] = []
        self.workers: dict[str, Worker] = {}
        self.hosts: dict[str, tuple[Host, asyncio.Task[None], asyncio.Event]] = {}
        self.ill: dict[str, float] = {}
        """Until when each host counts as ill: what it holds may run twice."""
        self._names = 0
        self._lonely: dict[tuple[int, int], float] = {}
        """Since when each claim has no hand."""

    async def run(self) -> None:
        """Let a fleet work through trouble, then let it end its work, and check what must hold."""
        await self.database.open(self.mutant)
        try:
            for _ in range(self.random.randint(1, 3)):
                self.start_worker()
            async with self.ingest() as store:
                traffic = asyncio.create_task(self.traffic(store))
                await self.trouble()
                await traffic
                await self.calm()
            await self.check()
        finally:
            for host, _, _ in list(self.hosts.values()):
                await host.die()
            await self.database.close()

    def is_well(self, host: str) -> bool:
        return self.ill.get(host, 0.0) < self.loop.now

    @asynccontextmanager
    async def ingest(self) -> AsyncIterator[Callable[[str, str], Any]]:
        host = Host("ingest")
        pool = Wire(self.database, host, "surelane_ingest", within=2, kept=True)
        connections = Connections(cast("Any", pool), timedelta(seconds=2))
        async with Writer(connections, buffer=100) as writer:
            yield writer.store

    async def traffic(self, store: Callable[[str, str], Any]) -> None:
        """Post events as Slack does: again and again until each is acknowledged."""
        async with asyncio.TaskGroup() as posts:
            for number in range(self.random.randint(10, 40)):
                await asyncio.sleep(self.random.expovariate(1 / 2.0))
                kind = self.random.choice(("plain", "plain", "few", "flaky", "steps", "waits"))
                key, group = f"{kind}-{number}", self.random.choice((*GROUPS, *GROUPS, None))
                text = json.dumps(_envelope(key, kind, group, EPOCH + self.loop.now))
                posts.create_task(self.post(store, key, text))
                if self.random.random() < 0.2:
                    posts.create_task(self.post(store, key, text))  # Slack's retry crosses it

    async def post(self, store: Callable[[str, str], Any], key: str, text: str) -> None:
        for _ in range(100):
            if isinstance(await store(text, key), Inserted):
                self.acknowledged.append(key)
                return
            await asyncio.sleep(1)
        raise BrokenError(f"{key} was never stored")

    async def trouble(self) -> None:
        """Break things at random."""
        faults = self.database.faults
        faults.slow = self.random.choice((0, 0.01, 0.1))
        faults.lost_answer = self.random.choice((0, 0.01, 0.05))
        faults.lost_request = self.random.choice((0, 0.01, 0.05))
        ends = self.loop.now + TROUBLE
        while self.loop.now < ends:
            await asyncio.sleep(self.random.expovariate(1 / 8.0))
            break_something = (self.kill, self.deploy, self.cut_off, self.restart, self.refuse, self.jump)
            await self.random.choice(break_something)()

    async def kill(self) -> None:
        """Kill a worker with everything that it runs, and start another."""
        if not self.hosts:
            return
        name = self.random.choice(sorted(self.hosts))
        host, _, _ = self.hosts.pop(name)
        self.log(f"{name} is killed")
        self.ill[name] = float("inf")
        await host.die()
        self.start_worker()

    async def deploy(self) -> None:
        """Start a worker, and drain another."""
        self.start_worker()
        name = self.random.choice(sorted(self.hosts))
        _, task, stop = self.hosts[name]
        self.log(f"{name} drains")
        stop.set()
        task.add_done_callback(lambda _: self.hosts.pop(name, None))

    async def cut_off(self) -> None:
        """Take the network from a worker for a while."""
        name = self.random.choice(sorted(self.hosts))
        host, _, _ = self.hosts[name]
        seconds = self.random.uniform(0.5, 40)
        self.log(f"{name} is cut off for {seconds:.1f} s")
        host.cut_off = True
        self.ill[name] = self.loop.now + seconds + ILL
        self.loop.call_later(seconds, setattr, host, "cut_off", False)

    async def restart(self) -> None:
        """Restart the database."""
        seconds = self.random.uniform(0.1, 8)
        self.log(f"the database is away for {seconds:.1f} s")
        for name in self.hosts:
            self.ill[name] = self.loop.now + seconds + ILL
        await self.database.restart(seconds)

    async def refuse(self) -> None:
        """Let the server refuse writes for a while, as a standby does."""
        seconds = self.random.uniform(1, 15)
        self.log(f"the server is read-only for {seconds:.1f} s")
        for name in self.hosts:
            self.ill[name] = self.loop.now + seconds + ILL
        self.database.read_only = True
        await asyncio.sleep(seconds)
        self.database.read_only = False

    async def jump(self) -> None:
        """Let the server's clock jump."""
        if self.random.random() < 0.3:
            self.database.jump += self.random.uniform(-20, 20)
            self.log(f"the server's clock is off by {self.database.jump:.1f} s")
            for name in self.hosts:
                self.ill[name] = self.loop.now + ILL

    async def calm(self) -> None:
        """End all trouble, and wait until everything has ended."""
        self.database.faults = Faults()
        self.database.jump = max(self.database.jump, 0.0)
        self.log("the trouble is over")
        if not any(not stop.is_set() for _, _, stop in self.hosts.values()):
            self.start_worker()
        ends = self.loop.now + BOUND
        while await self.database.see("select from agent.event"):
            if self.loop.now > ends:
                rows = await self.database.see(
                    "select item_key, kind, attempts, vt - agent.clock() as due, claimed_by, group_key from agent.event"
                )
                raise BrokenError(f"not ended within {BOUND:g} s: {[dict(row) for row in rows]}")
            await self.look_for_hands()
            await asyncio.sleep(5)

    async def look_for_hands(self) -> None:
        """Check that each claim is in the hand of a worker that lives."""
        rows = await self.database.see(
            "select id, array_upper(claimed, 1) as claim, claimed_by, item_key from agent.event"
            " where claimed_by is not null and vt > agent.clock()"
        )
        lonely = {}
        for row in rows:
            claim = row["id"], row["claim"]
            worker = self.workers.get(row["claimed_by"])
            if worker is None or claim not in worker.leases.known():
                lonely[claim] = self._lonely.get(claim, self.loop.now)
                if self.loop.now - lonely[claim] > RESCUED:
                    raise BrokenError(
                        f"{row['item_key']} is claimed by {row['claimed_by']}, which does not have it"
                    )
        self._lonely = lonely

    async def check(self) -> None:
        """Check what must hold at the end."""
        if self.witness.broken:
            raise BrokenError(self.witness.broken[0])
        rows = await self.database.see("select item_key, outcome from agent.event_hist")
        ended = Counter(row["item_key"] for row in rows)
        if twice := [key for key, count in ended.items() if key and count > 1]:
            raise BrokenError(f"in history twice: {twice}")
        if lost := sorted(set(self.acknowledged) - ended.keys()):
            raise BrokenError(f"acknowledged and lost: {lost}")
        if failed := [row["item_key"] for row in rows if row["outcome"] != "completed"]:
            raise BrokenError(f"not completed: {failed}")
        for group, began in self.witness.began.items():
            order = list(dict.fromkeys(began))  # an event that began before may run again at any time
            for (early, first), (late, second) in combinations(order, 2):
                if late < early and second < first:
                    raise BrokenError(f"in group {group} event {first} began before {second}: {order}")

    def start_worker(self) -> None:
        self._names += 1
        host, stop = Host(f"worker-{self._names}"), asyncio.Event()
        self.log(f"{host.name} starts")
        context = copy_context()
        context.run(HERE.set, host)
        self.hosts[host.name] = host, self.loop.create_task(self._work(host, stop), context=context), stop

    async def _work(self, host: Host, stop: asyncio.Event) -> None:
        settings = WorkerSettings(**cast("Any", SETTINGS | {"SURELANE_WORKER_NAME": host.name}))
        observer = Observer(Metrics())

        def pool(within: float = 30.5) -> Any:
            return Wire(self.database, host, "surelane_worker", within=within, kept=True)

        pools = Pools(pool(), pool(5), pool(5.5), pool(), pool())
        worker = Worker(settings, self.witness.handlers(host), pools, cast("Any", None), observer)
        self.workers[host.name] = worker
        async with AsyncExitStack() as stack:
            stack.callback(self.workers.pop, host.name, None)
            stack.push_async_callback(worker.announcer.retire)
            stack.push_async_callback(worker.hang_up)
            async with beside(*worker.duties()):
                await worker.claim(stop)
                await worker.position.resign()
                await worker.drain(settings.drain_timeout.total_seconds())


def _envelope(key: str, kind: str, group: str | None, at: float) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": kind, "event_ts": f"{at:.6f}"}
    if group is not None:
        inner |= {
            "channel": "C1",
            "ts": f"{EPOCH + 1:.6f}",
            "thread_ts": f"{EPOCH + 1 + GROUPS.index(group):.6f}",
        }
    return {
        "type": "event_callback",
        "team_id": "T1",
        "event_id": key,
        "event_time": int(EPOCH),
        "event": inner,
    }


async def simulate(
    seed: int, admin: str, name: str, log: Callable[[str], None], mutant: Mutant | None = None
) -> None:
    """Run the simulation of a seed on a migrated database, with a defect if one is given.

    Raises:
        BrokenError: a promise was broken.
    """
    loop = cast("VirtualLoop", asyncio.get_running_loop())
    loop.set_task_factory(cast("Any", with_host))
    random = Random(seed)
    standard_random.seed(seed)

    def said(text: str) -> None:
        log(f"{loop.now:8.3f} {text}")

    database = Database(admin, name, loop, random, said)
    fleet = Fleet(seed, loop, database, random, said, mutant)

    async def connect(_: str, **given: Any) -> Wire:
        wire = Wire(database, HERE.get(), "surelane_worker", within=given["timeout"], kept=False)
        await wire.open()
        return wire

    real, asyncpg.connect = asyncpg.connect, cast("Any", connect)
    try:
        await fleet.run()
    finally:
        asyncpg.connect = real


async def in_database(
    seed: int, admin: str, template: str, name: str, log: Callable[[str], None], mutant: str | None
) -> None:
    """Run the simulation of a seed in a new database, with a defect if one is named.

    Raises:
        BrokenError: a promise was broken.
    """
    server, loop = Server(admin), cast("VirtualLoop", asyncio.get_running_loop())
    with loop.real():
        await server.execute(f"create database {name} owner {OWNER} template {template} strategy file_copy")
    try:
        await simulate(seed, admin, name, log, MUTANTS[mutant] if mutant else None)
    finally:
        with loop.real():
            await server.execute(f"drop database if exists {name} with (force)")
