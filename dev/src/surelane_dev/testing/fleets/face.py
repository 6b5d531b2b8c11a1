"""A fleet in virtual time: the real ingest writer, real workers and the real SQL, for tests that break things."""

import asyncio
import inspect
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import Context as Variables
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, wraps
from typing import Any, cast
from unittest.mock import patch

import asyncpg

from surelane.calls import Pool
from surelane.codec import Codec, codec_of
from surelane.events import Event, Inserted
from surelane.queue import Queue
from surelane_dev.accounts import OWNER
from surelane_dev.testing.agents import agents_use
from surelane_dev.testing.crash import Crashes
from surelane_dev.testing.fleets.database import Database
from surelane_dev.testing.fleets.slack import Answering, MessagesInMemory, clients
from surelane_dev.testing.fleets.virtual import EPOCH, HERE, VirtualLoop, virtual_time
from surelane_dev.testing.fleets.wire import Host, Net, Wire, with_host
from surelane_dev.testing.story import stories
from surelane_ingest.writer import Connections, Writer
from surelane_service.engine import Engine
from surelane_service.pool import GRACE
from surelane_worker import Handlers, assembly
from surelane_worker.assembly import STATEMENT_TIMEOUT, Assembly, Pools
from surelane_worker.duties import Duty, beside
from surelane_worker.handling.outcomes import Pause, duration
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.tracing import Observer
from surelane_worker.running.watching import Watchdog
from surelane_worker.slack.marks import ordinal_of
from surelane_worker.wiring import with_answers
from surelane_worker.worker_settings import WorkerSettings

SETTINGS = {"DATABASE_URL": "postgresql://virtual", "SLACK_BOT_TOKEN": "xoxb-virtual"}
BETWEEN, LOOK, STATEMENT = 0.01, 0.5, 10.0
"""Seconds between two looks whether a condition holds: at least; at most; and at most where a look is a statement."""
BOUND = "10m"
"""How long a test waits for something."""
ROW = """
select to_jsonb(e) from agent.event as e where id = $1
union all select to_jsonb(h) from agent.event_hist as h where id = $1
"""
Test = Callable[..., Coroutine[Any, Any, None]]
MakesEngine = Callable[[Pool], Engine]
_open: list[Database] = []
"""The database of this session's virtual tests."""


def virtual(test: Test) -> Callable[..., None]:
    """Run a test in virtual time: its clock jumps to what happens next, so an hour takes no longer than its work.

    It uses the fixture ``virtual_database``. Meanwhile ``time.time()``, ``time.monotonic()`` and ``asyncio.sleep`` show
    virtual time, and ``datetime.now()`` does not.
    """
    import pytest  # noqa: PLC0415 - the package has other uses

    @wraps(test)
    def run(*args: Any, **given: Any) -> None:
        loop = _open[-1].loop
        loop.now = 0.0
        with virtual_time(loop):
            loop.run_until_complete(test(*args, **given))

    marked: Callable[..., None] = pytest.mark.usefixtures("virtual_database")(run)
    return marked


@contextmanager
def virtual_databases(admin: str, template: str) -> Iterator[Database]:
    """Copy a migrated database, to be used by one virtual test after another, each in the database's own loop."""
    loop = VirtualLoop()
    opening = Database.opened(admin, template)
    _open.append(loop.run_until_complete(opening.__aenter__()))
    try:
        yield _open[-1]
    finally:
        _open.pop()
        loop.run_until_complete(opening.__aexit__(None, None, None))
        loop.close()


@dataclass(eq=False)
class FleetWorker:
    """A worker of a fleet."""

    host: Host
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] = field(init=False)
    worker: Assembly | None = None

    def runs(self, event: "StoredEvent") -> bool:
        """Return whether it holds a claim of an event."""
        return self.worker is not None and event.id in {known for known, _ in self.worker.leases.known()}

    async def work(
        self,
        net: Net,
        settings: WorkerSettings,
        handlers: Handlers,
        slack: Answering,
        engine: Callable[[Pool, Codec], Engine] = Engine,
    ) -> None:
        """Work as the process ``surelane_worker`` does, until ``stop`` is set."""
        name, soon = self.host.name, assembly.CLAIM_TIMEOUT

        def pool(bound: timedelta = STATEMENT_TIMEOUT, grace: float = GRACE, worker: str = "") -> Any:
            within = bound.total_seconds() + grace
            return Wire(net, self.host, "surelane_worker", within=within, kept=True, worker=worker)

        pools = Pools(pool(worker=name), pool(soon, 0, name), pool(soon), pool(), pool())
        settings = settings.model_copy(update={"name": name})
        codec = codec_of(settings.encryption_keys, pools.looks, on=settings.encrypt_events)
        slack_clients, observer = clients(slack, net, self.host), Observer(Metrics())
        worker = self.worker = Assembly(
            settings, handlers, pools, slack_clients, observer, engine=engine, codec=codec
        )
        async with AsyncExitStack() as stack:
            stack.push_async_callback(worker.announcer.retire)
            stack.push_async_callback(worker.hang_up)
            async with beside(*(duty for duty in worker.duties() if not _watches(duty))):
                await worker.claim(self.stop)
                await worker.position.resign()
                await worker.drain(settings.drain_timeout.total_seconds())
        # With the process ends what would send an outcome again.
        net.database.serve(self.host.die())


@dataclass(frozen=True)
class StoredEvent:
    """An event that a test has stored."""

    fleet: "VirtualFleet"
    id: int
    key: str
    """Its natural key, or its id."""
    payload: Mapping[str, Any]
    """What Slack posted; of a job nothing."""

    async def row(self) -> dict[str, Any]:
        """Return its row, of the queue or of history. Times are texts, as JSON has them."""
        ((row,),) = await self.fleet.sql(ROW, self.id)
        return cast("dict[str, Any]", json.loads(row))

    async def ended(self) -> dict[str, Any] | None:
        """Return its row of history once it has ended."""
        row = await self.row()
        return row if "outcome" in row else None

    async def why(self) -> str:
        """Return the reason for which it waits, such as ``suspended``, or its outcome."""
        row, looked = await self.ended(), "select reason from agent.why_waiting($1)"
        return str(row["outcome"] if row else (await self.fleet.sql(looked, self.id))[0][0])

    async def suspended(self) -> bool:
        """Return whether it waits without a worker."""
        return await self.why() == "suspended"

    async def steps(self) -> list[dict[str, Any]]:
        """Return its stored steps and waits."""
        ((steps,),) = await self.fleet.sql("select agent.list_steps($1)", self.id)
        return cast("list[dict[str, Any]]", json.loads(steps or "[]"))

    async def children(self) -> list["StoredEvent"]:
        """Return the children that it runs or ran, in the order in which they were started."""
        query = "select id from agent.job where continuation_id = $1 order by id"
        found = await self.fleet.sql(query, self.id)
        return [await self.fleet.stored(row["id"]) for row in found]

    async def result(self, within: Pause = BOUND) -> Any:
        """Wait until it has completed, and return its result."""
        row = await self.fleet.until(self.ended, within)
        assert row["outcome"] == "completed", row
        return row["result"]

    async def errors(self) -> list[str]:
        """Wait until it has ended, and return the types and messages of its errors: ``ValueError: no``."""
        row = await self.fleet.until(self.ended)
        return [f"{each['type']}: {each['message']}" for each in row["errors"] or []]


class VirtualFleet:
    """Workers, an ingest and a program beside the database, all in one process and in virtual time."""

    def __init__(self, net: Net, handlers: Handlers, settings: Mapping[str, str]) -> None:
        self.net, self.database, self.loop = net, net.database, net.database.loop
        self.slack = MessagesInMemory(net)
        self.workers: list[FleetWorker] = []
        """The running ones: started, and not yet killed or drained."""
        self.connection = Wire(net, Host("program"), OWNER, within=2, kept=True)
        """A program's connection, as the owner."""
        self.queue = Queue(self.connection)
        """The queue as a program sees it."""
        self.handlers, self._settings = handlers, settings
        """``handlers``: what workers are started with by default."""
        self._crashes = Crashes(self._crash)
        self._names = 0
        self._kills: list[asyncio.Task[None]] = []
        self.writer: Writer

    @property
    def now(self) -> float:
        """Seconds since the test began."""
        return self.loop.now

    def start(self, handlers: Handlers | None = None, **settings: str) -> FleetWorker:
        """Start a worker, with other handlers or settings than the fleet's perhaps: a new version is deployed."""
        self._names += 1
        given = _settings(frozenset({**SETTINGS, **self._settings, **settings}.items()))
        around = Handlers()
        around.middleware(self._crashes.around)
        around.include(with_answers(self.handlers if handlers is None else handlers, given))
        member = FleetWorker(Host(f"worker-{self._names}"))
        variables = copy_context()
        variables.run(HERE.set, member.host)
        work = member.work(self.net, given, around, self.slack, self._crashes.engine)
        member.task = self.loop.create_task(work, context=variables)
        self.workers.append(member)
        return member

    async def kill(self, worker: FleetWorker | None = None, *, noticed: float = 0.0) -> None:
        """Kill a worker as ``kill -9`` does, the oldest by default. No other one is started.

        ``noticed``: seconds until the server notices that its connections are gone, as where a machine vanishes.
        """
        worker = self.workers[0] if worker is None else worker
        self.workers.remove(worker)
        await worker.host.die(noticed)

    async def drain(self, worker: FleetWorker | None = None) -> None:
        """Stop a worker as SIGTERM does, the oldest by default, and wait for its end."""
        worker = self.workers[0] if worker is None else worker
        worker.stop.set()
        await worker.task
        self.workers.remove(worker)

    def freeze(self, worker: FleetWorker, pause: Pause) -> None:
        """Let a worker's process stand still for a while, as SIGSTOP does, or a handler that blocks the event loop."""
        worker.host.frozen = True
        self._later(pause, worker.host.thaw)

    def cut_off(self, worker: FleetWorker, pause: Pause) -> None:
        """Take the network from a worker for a while."""
        worker.host.cut_off = True
        self._later(pause, setattr, worker.host, "cut_off", False)

    async def restart_database(self, pause: Pause = 1) -> None:
        """Restart the database, which is away for a while. All connections break."""
        await self.net.restart(duration(pause).total_seconds())

    def killed_at(self, point: str) -> AbstractContextManager[None]:
        """Kill the worker whose handler first reaches a point in the block. A fresh one goes on.

        Args:
            point: ``start``, ``end``, ``step NAME``, ``in step NAME`` or ``wait NAME``, as for :meth:`Bot.killed_at`.
        """
        return self._crashes.at(point)

    async def die(self) -> None:
        """Called by a handler: kill the worker that it runs on. A fresh one goes on."""
        self._crash()
        await asyncio.Future()

    async def enqueue(
        self, kind: str, payload: object = None, *, run_in: Pause | None = None, **job: Any
    ) -> StoredEvent:
        """Enqueue a job as a program does, with the fields of :class:`surelane.Job`."""
        if run_in is not None:
            job["run_at"] = datetime.fromtimestamp(EPOCH + self.now, UTC) + duration(run_in)
        return await self.stored(await self.queue.enqueue(kind, payload, **job))

    async def mention(
        self, text: str, *, user: str = "U1", channel: str = "C1", thread: StoredEvent | None = None
    ) -> StoredEvent:
        """Mention the bot, in a new thread or in that of another mention."""
        ts = self.slack.next_ts()
        inner = {"type": "app_mention", "user": user, "text": text, "channel": channel, "ts": ts}
        inner |= {"event_ts": ts} | ({} if thread is None else {"thread_ts": thread.payload["event"]["ts"]})
        envelope = {"type": "event_callback", "team_id": "T1", "event_id": f"Ev{ts}", "event": inner}
        return await self.post({**envelope, "event_time": int(float(ts))})

    async def post(self, payload: Mapping[str, Any]) -> StoredEvent:
        """Let Slack post something to ingest: an event's envelope, a command, or an interaction."""
        answer = await self.writer.store(json.dumps(payload), None)
        assert isinstance(answer, Inserted), answer
        return await self.stored(answer.id, payload)

    async def stored(self, identity: int, payload: Mapping[str, Any] | None = None) -> StoredEvent:
        """Return the event with an id."""
        ((row,),) = await self.sql(ROW, identity)
        return StoredEvent(self, identity, json.loads(row)["item_key"] or str(identity), payload or {})

    async def signal(self, event: StoredEvent, name: str, value: object = None) -> str | None:
        """Send a value to an event that waits for it."""
        return await self.queue.signal(str(event.id), name, value)

    async def cancel(self, event: StoredEvent, **why: Any) -> str | None:
        """Cancel an event."""
        return await self.queue.cancel(str(event.id), **why)

    async def rerun(
        self, event: StoredEvent, from_step: str | None = None, payload: object = None
    ) -> StoredEvent:
        """Run an ended event again as a new one, which keeps the steps before ``from_step``."""
        text = None if payload is None else json.dumps(payload)
        query = "select rerun from agent.rerun_as_new($1, $2, $3)"
        ((identity,),) = await self.sql(query, event.id, from_step, text)
        return await self.stored(identity, event.payload)

    async def sleep(self, pause: Pause) -> None:
        """Let time pass."""
        await asyncio.sleep(duration(pause).total_seconds())

    async def until(self, condition: Callable[[], Any], within: Pause = BOUND) -> Any:
        """Wait until a condition holds, and return what it returned. It may be a coroutine function.

        Raises:
            AssertionError: it does not hold in time. The message tells where each event is.
        """
        ends = self.now + duration(within).total_seconds()
        look = STATEMENT if inspect.iscoroutinefunction(condition) else LOOK
        while not (found := await _awaited(condition())):
            for each in self.workers:
                if each.task.done():
                    each.task.result()
            if self.now > ends:
                told = await stories(cast("Any", self), self._crashes.tracebacks)
                raise AssertionError("\n".join([f"not so within {within}", *map(str, told)]))
            self.database.worked.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.database.worked.wait(), look)
            await asyncio.sleep(BETWEEN)
        return found

    def replies(self, event: StoredEvent) -> list[str]:
        """Return the texts of the bot's messages for an event, in the order in which they were posted."""
        url = event.payload.get("response_url", "")
        return [
            each["text"]
            for each in self.slack.messages
            if ordinal_of(each, cast("Event", event)) is not None or each.get("response_url") == url
        ]

    async def sql(self, query: str, *arguments: object) -> Any:
        """Return the rows of a statement of the database's owner, at once and without faults."""
        return await self.database.see(query, *arguments)

    fetch = sql

    def _later(self, pause: Pause, act: Callable[..., object], *given: Any) -> None:
        self.loop.call_later(duration(pause).total_seconds(), act, *given, context=Variables())

    def _crash(self) -> None:
        host = HERE.get()
        worker = next(each for each in self.workers if each.host is host)

        async def begin_anew() -> None:
            await self.kill(worker)
            self.start()

        self._kills.append(self.loop.create_task(begin_anew(), context=Variables()))


@asynccontextmanager
async def fleet(
    handlers: Handlers,
    *,
    database: Database | None = None,
    workers: int = 1,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[VirtualFleet]:
    """Run workers with these handlers for the block, in a test that is :func:`virtual`.

    Args:
        handlers: a team's handlers. They run in the test's process, and may share values with the test.
        database: that of the fixture ``virtual_database``, which is empty now.
        workers: how many are started.
        settings: variables of the workers, such as ``{"SURELANE_LEASE": "1m"}``; by default as in production.
    """
    given = settings or {}
    with agents_use(**given):
        async with simulated(database or _open[-1], seed=0) as net:
            running = VirtualFleet(net, handlers, given)
            pool = Wire(net, Host("ingest"), "surelane_ingest", within=2, kept=True)
            connections = Connections(cast("Any", pool), timedelta(seconds=2))
            async with Writer(connections, buffer=1000) as running.writer:
                for _ in range(workers):
                    running.start()
                yield running


@asynccontextmanager
async def simulated(
    database: Database, seed: int, log: Callable[[str], object] = lambda _: None
) -> AsyncIterator[Net]:
    """Empty the database, and let all connections of the block be a network's. At its end all hosts die."""
    loop = database.loop
    loop.now = 0.0
    loop.set_task_factory(cast("Any", with_host))
    was = random.getstate()
    random.seed(seed)
    await database.begin(seed)
    net = Net(database, random.Random(f"network {seed}"), log)
    try:
        with patch.object(asyncpg, "connect", net.connect):
            yield net
            for host in list(net.hosts):
                await host.die()
    finally:
        await _end_all(database)
        random.setstate(was)


async def _end_all(database: Database) -> None:
    """Let nothing of this run reach the next one."""
    for _ in range(2):
        left = asyncio.all_tasks() - {cast("Any", asyncio.current_task())} - database.serving
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=100)
        await asyncio.sleep(100_000)  # every timer has passed


@cache
def _settings(given: frozenset[tuple[str, str]]) -> WorkerSettings:
    return WorkerSettings(**cast("Any", dict(given)))


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _watches(duty: Duty) -> bool:
    """Return whether a duty is the watchdog's, whose thread would look at real time."""
    return isinstance(getattr(duty, "__self__", None), Watchdog)
