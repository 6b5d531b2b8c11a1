"""Run the services on this machine with a part of the load, and measure what the primary's work costs here."""

import asyncio
import json
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path

import aiohttp
import asyncpg
from slack_sdk.signature import SignatureVerifier

from benchmarks import consumer, figures
from benchmarks.bench import Bench, at_rest
from benchmarks.fill import KIND
from benchmarks.measures import ingest
from benchmarks.programs.ingest_load import SECRET
from benchmarks.server import SETTINGS, Server, connected, migrated_template, running_server
from benchmarks.shards.shape import PAUSES, Blast, Post, Shape
from benchmarks.shards.shard import Figures, Outage, Shard
from surelane_dev.accounts import create_roles
from surelane_dev.postgres import embedded

SHRINK = 60.0
"""Pauses between Slack's retries are so many times as short. Threads are followed up ten times as fast."""
AFTERWARDS = 45.0
"""Seconds after the blast's end in which waits count as beside it."""
AWAY = 5.0
SMALL = 50
"""Workspaces from this rank on are small."""
GIVEN_UP = 60.0
SEEDS = 10
"""Runs of the simulation: which workers hear of events first is a matter of luck."""
FLOOD, CLAIMS, CLAIMERS = 20_000, 4_000, 4


@dataclass(frozen=True)
class Scene:
    """A fleet and its load on this machine."""

    workers: int
    slots: int
    shape: Shape
    seconds: float
    stops: float | None = None
    """When the server stops, for :data:`AWAY` seconds."""

    def named(self, stored: float, workspace: int) -> tuple[str, str]:
        """Return under what the wait of an event counts."""
        blast = self.shape.blast
        whose = "small" if workspace >= SMALL else "others"
        if blast is None:
            return "first minute" if stored < 60 else "second minute", whose
        when = (
            "before" if stored < blast.begins else "beside" if stored < blast.ends + AFTERWARDS else "after"
        )
        return when, "blasting" if workspace == blast.workspace else whose


BLAST = Blast(9, 15.0, 10.0, 100.0)
SCENES = {
    "a blast and an outage": Scene(8, 5, Shape(200, 20.0, 1.0, BLAST, shrink=10.0), 110.0, 80.0),
    "half of the slots busy": Scene(16, 5, Shape(200, 40.0, 1.0, shrink=10.0), 122.0),
    "the same slots in two workers": Scene(2, 40, Shape(200, 40.0, 1.0, shrink=10.0), 122.0),
}


@dataclass
class Sent:
    """What Slack would know."""

    began: float
    figures: Figures = field(default_factory=Figures)
    statuses: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Slack's answers, by the number of the retry."""

    async def post(self, session: aiohttp.ClientSession, url: str, post: Post) -> None:
        """Send a post at its time, and again as Slack does."""
        await asyncio.sleep(self.began + post.at - time.time())
        for retry, pause in enumerate((*PAUSES, None)):
            status = await _answered(session, url, post, self.began)
            self.statuses[retry, status] += 1
            if status == 200:
                self.figures.stored += 1
                self.figures.retried += retry > 0
                return
            if pause is not None:
                await asyncio.sleep(pause / SHRINK)
        self.figures.lost += 1


async def _answered(session: aiohttp.ClientSession, url: str, post: Post, began: float) -> int:
    thread = f"{int(began)}.{post.thread % 1_000_000:06d}"
    at = f"{began + post.at:.6f}"
    event = {
        "type": "app_mention",
        "user": "U0LAN0Z89",
        "text": f"{post.seconds:.3f}",
        "channel": f"C{post.workspace}",
        "ts": at,
        "event_ts": at,
        "thread_ts": thread,
    }
    envelope = {
        "type": "event_callback",
        "team_id": f"T{post.workspace}",
        "api_app_id": "A0",
        "event_id": f"Ev{post.at:.6f}.{post.thread}",
        "event_time": int(began + post.at),
        "event": event,
    }
    body, now = json.dumps(envelope), str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "X-Slack-Request-Timestamp": now,
        "X-Slack-Signature": SignatureVerifier(SECRET).generate_signature(timestamp=now, body=body) or "",
    }
    async with session.post(url, data=body, headers=headers) as response:
        return response.status


async def check(seed: int) -> None:
    """Run the services, then simulate the same, and print both."""
    for name, usual in SCENES.items():
        scene = replace(usual, shape=replace(usual.shape, seed=seed))
        posts = list(scene.shape.posts(scene.seconds))
        found, outage, connections = await _run(scene, posts)
        simulated = [_simulate(scene, posts, outage, number) for number in range(SEEDS)]
        away = f"; the server was away for {outage.lasts:.1f} s" if outage else ""
        print(f"{name}: {len(posts)} posts, {connections} connections at most{away}")
        print(f"{'':28}{f'simulated, {SEEDS} seeds':>24}{'measured':>12}")
        for label, read in _readings(found):
            values = [read(each) for each in simulated]
            print(f"{label:28}{f'{_short(min(values))}…{_short(max(values))}':>24}{_short(read(found)):>12}")


def _simulate(scene: Scene, posts: Sequence[Post], outage: Outage | None, seed: int) -> Figures:
    def pauses(retry: int, *, delayed: bool) -> float | None:  # noqa: ARG001
        return PAUSES[retry] / SHRINK if retry < len(PAUSES) else None

    shard = Shard(scene.workers, scene.slots, outage=outage, named=scene.named, seed=seed, pauses=pauses)
    return shard.run(posts)


def _readings(found: Figures) -> Iterator[tuple[str, Callable[[Figures], float]]]:
    """Yield what to compare, and how to read it."""
    for part in ("stored", "retried", "lost", "repeated"):
        yield part, attrgetter(part)
    for minute in sorted(found.claims):
        yield f"claims in minute {minute + 1}", partial(_claims_in, minute)
    for key in sorted(found.waits):
        for share, name in ((0.5, "p50"), (0.99, "p99"), (1.0, "most")):
            yield f"{' '.join(key)}, {name}", partial(_wait, key, share)


def _claims_in(minute: int, found: Figures) -> float:
    return found.claims[minute]


def _wait(key: tuple[str, str], share: float, found: Figures) -> float:
    return figures.percentile(found.waits[key], share)


def _short(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f} s"


async def _run(scene: Scene, posts: Sequence[Post]) -> tuple[Figures, Outage | None, int]:
    """Run a scene. Return what happened, when the server was away, and how many connections it had at most."""
    async with _server() as (server, restart), migrated_template(server) as template:
        bench = Bench(server, template, quick=False, rounds=1)
        async with bench.database() as database, AsyncExitStack() as stack:
            uri = server.uri(database.name, "surelane_ingest")
            service = await stack.enter_async_context(ingest.running_service(ingest.STORING, uri, {}))
            for _ in range(scene.workers):
                await stack.enter_async_context(
                    consumer.worker(database.worker, "shaped", concurrency=scene.slots)
                )
            async with asyncio.timeout(60), connected(database.admin) as connection:
                while await connection.fetchval("select count(*) from agent.worker") < scene.workers:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            most = [0]
            connections = asyncio.create_task(_connections(database.admin, most))
            url, sent = f"http://127.0.0.1:{service.port}/slack/events", Sent(time.time() + 1)
            claims = asyncio.create_task(_claims_by_minute(database.admin, sent, scene.seconds))
            outage = await _post_all(scene, posts, url, sent, restart)
            async with connected(database.admin) as connection:
                await _read(connection, scene, sent)
            await claims
            connections.cancel()
            return sent.figures, outage, most[0]


@asynccontextmanager
async def _server() -> AsyncIterator[tuple[Server, "Restart"]]:
    """Run a server that can be stopped and started again."""
    with tempfile.TemporaryDirectory(prefix="surelane-bench-") as directory:
        restart = Restart(Path(directory))
        try:
            admin = await restart.start()
            async with connected(admin) as connection:
                await create_roles(connection)
            yield Server(admin), restart
        finally:
            await restart.stack.aclose()


@dataclass
class Restart:
    """Stops a server, and starts it again."""

    directory: Path
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> str:
        """Start it; return the administrator's URI."""
        running = embedded(
            self.directory, on_line=lambda _: None, settings={**SETTINGS, "track_functions": "pl"}
        )
        postgres = await self.stack.enter_async_context(running)
        self._child = postgres.child
        return postgres.uri

    async def outage(self, seconds: float) -> None:
        """Keep it away for so long."""
        self._child.process.send_signal(signal.SIGINT)
        await self.stack.aclose()
        await asyncio.sleep(seconds)
        await self.start()


async def _post_all(
    scene: Scene, posts: Sequence[Post], url: str, sent: Sent, restart: Restart
) -> Outage | None:
    async def break_once() -> Outage | None:
        if scene.stops is None:
            return None
        await asyncio.sleep(sent.began + scene.stops - time.time())
        stopped = time.time()
        await restart.outage(AWAY)
        return Outage(stopped - sent.began, time.time() - stopped)

    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        asyncio.TaskGroup() as group,
    ):
        breaking = group.create_task(break_once())
        for post in posts:
            group.create_task(sent.post(session, url, post))
    return breaking.result()


async def _connections(admin: str, most: list[int]) -> None:
    """Note the most connections of the services, once per second until the server stops."""
    found = "select count(*) from pg_stat_activity where usename in ('surelane_ingest', 'surelane_worker')"
    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        async with connected(admin) as connection:
            while True:
                most[0] = max(most[0], await connection.fetchval(found))
                await asyncio.sleep(1)


async def _claims_by_minute(admin: str, sent: Sent, seconds: float) -> None:
    """Count the workers' claims, until the server stops."""
    counted = 0
    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        async with connected(admin) as connection:
            for minute in range(int(seconds // 60)):
                await asyncio.sleep(sent.began + 60 * (minute + 1) - time.time())
                found = "select calls from pg_stat_user_functions where funcname = 'claim_events'"
                calls = int(await connection.fetchval(found) or 0)
                sent.figures.claims[minute], counted = calls - counted, calls


async def _read(connection: asyncpg.Connection, scene: Scene, sent: Sent) -> None:
    """Wait until every event has ended, and read the waits from history."""
    async with asyncio.timeout(GIVEN_UP):
        while await connection.fetchval("select count(*) from agent.event"):  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    rows = await connection.fetch(
        "select extract(epoch from enqueued_at)::float8 as stored, group_key, event ->> 'team_id' as team, attempts"
        ", (result ->> 'began')::float8 as began, (result ->> 'ended')::float8 as ended"
        " from agent.event_hist where outcome = 'completed' order by began"
    )
    if len(rows) < sent.figures.stored:
        raise RuntimeError(f"{len(rows)} of {sent.figures.stored} events completed")
    free: dict[str, float] = {}
    for row in rows:
        waited = row["began"] - max(row["stored"], free.get(row["group_key"], 0.0))
        free[row["group_key"]] = row["ended"]
        key = scene.named(row["stored"] - sent.began, int(row["team"][1:]))
        sent.figures.waits[key].append(waited)
        sent.figures.repeated += row["attempts"] > 1


async def measure() -> None:
    """Print what the primary carries from insert to history, and what a claim costs that finds nothing."""
    async with running_server() as server, migrated_template(server) as template:
        bench = Bench(server, template, quick=False, rounds=1)
        async with bench.database() as database, at_rest(database) as connection:
            uri = server.uri(database.name, "surelane_ingest")
            each, took = await _claims(database.worker)
            print(f"a claim that finds nothing: {each * 1e6:.0f} µs of {took * 1e3:.2f} ms")
            async with (
                ingest.running_service(ingest.STORING, uri, {}) as service,
                consumer.worker(database.worker, "shaped", concurrency=100),
            ):
                paced = await ingest.load(service.port, 400, 20)
                print(f"an insert: p50 {figures.milliseconds(paced['p50'])}")
                began = time.monotonic()
                told = await ingest.load(service.port, FLOOD)
                stored = time.monotonic() - began
                while await connection.fetchval("select count(*) from agent.event"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                seconds = time.monotonic() - began
            print(
                f"{FLOOD / seconds:,.0f} events/s to history; {told['rate']:,.0f}/s stored, in {stored:.1f} s"
            )


async def _claims(uri: str) -> tuple[float, float]:
    """Return seconds per claim, of several at once and of one alone."""

    async def claim(count: int) -> None:
        async with connected(uri) as connection:
            for _ in range(count):
                await connection.fetch("select * from agent.claim_events($1, $2)", [KIND], 10)

    times = []
    for claimers in (CLAIMERS, 1):
        began = time.monotonic()
        await asyncio.gather(*(claim(CLAIMS // claimers) for _ in range(claimers)))
        times.append((time.monotonic() - began) / CLAIMS)
    return times[0], times[1]
