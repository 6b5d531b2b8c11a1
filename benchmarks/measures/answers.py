"""Measure how soon people get their answer: commands beside other events, and clicks beside a large backlog."""

import asyncio
import hashlib
import hmac
import json
import random
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlencode

import aiohttp

from benchmarks import consumer, figures
from benchmarks.bench import Bench, at_rest
from benchmarks.consumer import Consumer
from benchmarks.fill import fill
from benchmarks.measures import ingest
from benchmarks.programs.ingest_load import SECRET
from benchmarks.result import Bars, Result, Table, Verdict
from surelane.calls import Connection

WORKERS, SLOTS = 3, 10
BACKLOG = 1_000_000
PACE = 500
"""Other events per second, while commands are timed."""
PAUSE = 0.05
"""Seconds between two requests, on average."""
WARM_UP = 10
ANSWERED, CLICKED, STARTED = "command → answer", "click → 200", "click → handler"
LIMITS = {ANSWERED: 0.150, STARTED: 0.050}


@dataclass(frozen=True)
class Stand:
    """An ingest service, its workers, and a client."""

    connection: Connection
    port: int
    workers: Sequence[Consumer]
    session: aiohttp.ClientSession

    async def post(self, fields: Mapping[str, str]) -> tuple[str, float, float]:
        """Post a form as Slack does. Return the answer, and the times before and after."""
        body = urlencode(fields).encode()
        timestamp = str(int(time.time()))
        signed = b"v0:" + timestamp.encode() + b":" + body
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "X-Slack-Request-Timestamp": timestamp,
            "X-Slack-Signature": f"v0={hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()}",
        }
        began = time.monotonic()
        async with self.session.post(
            f"http://127.0.0.1:{self.port}/slack/events", data=body, headers=headers
        ) as response:
            text = await response.text()
            if response.status != 200:
                raise RuntimeError(f"answered {response.status}")
            return text, began, time.monotonic()


async def measure(bench: Bench) -> Result:
    """Time commands beside other events, then clicks beside a backlog whose handlers take all slots."""
    count = WARM_UP + bench.size(1_000, 60)
    backlog = bench.size(BACKLOG, 10_000)
    async with _stand(bench, 0) as stand:
        times = await _commands(stand, count)
    async with _stand(bench, backlog) as stand:
        clicks, starts, expired = await _clicks(stand, count)
    return _result({ANSWERED: times, CLICKED: clicks, STARTED: starts}, backlog, expired)


@asynccontextmanager
async def _stand(bench: Bench, backlog: int) -> AsyncIterator[Stand]:
    async with bench.database() as database, AsyncExitStack() as stack:
        async with at_rest(database) as connection:
            await fill(connection, backlog)
        connection = await stack.enter_async_context(at_rest(database))
        uri = bench.server.uri(database.name, "surelane_ingest")
        service = await stack.enter_async_context(ingest.running_service(ingest.STORING, uri, {}))
        workers = [
            await stack.enter_async_context(
                consumer.worker(database.worker, "answering", concurrency=SLOTS, SURELANE_DRAIN_TIMEOUT="1s")
            )
            for _ in range(WORKERS)
        ]
        async with asyncio.timeout(60):
            while await connection.fetchval("select count(*) from agent.worker") < WORKERS:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Stand(connection, service.port, workers, session)


async def _commands(stand: Stand, count: int) -> list[float]:
    """Post commands one after another, while other requests come at a steady pace. Return the seconds of each."""
    events = int(PACE * (10 + count * PAUSE * 4))
    beside = asyncio.create_task(ingest.load(stand.port, events, PACE))
    try:
        times = []
        for number in range(count):
            trigger = secrets.token_hex(8)
            fields = {"command": "/bench", "text": str(number), "team_id": "T0", "trigger_id": trigger}
            answer, began, ended = await stand.post(fields)
            if json.loads(answer) != {"text": str(number)}:
                raise RuntimeError(f"command {number} was answered {answer!r}")
            times.append(ended - began)
            await _pause()
        if beside.done():
            raise RuntimeError(f"the other requests ended first: {beside.result()}; commands took {times}")
        return times[WARM_UP:]
    finally:
        beside.cancel()
        await asyncio.wait([beside])


async def _clicks(stand: Stand, count: int) -> tuple[list[float], list[float], int]:
    """Click one after another. Return the seconds to each answer and to each handler, and how many triggers expired."""
    answered, started = [], []
    for number in range(count):
        payload = {
            "type": "block_actions",
            "team": {"id": "T0", "domain": "bench"},
            "channel": {"id": "C0"},
            "message": {"ts": "1760000000.1"},
            "trigger_id": secrets.token_hex(8),
            "actions": [{"action_id": "bench", "value": str(number)}],
        }
        _, began, ended = await stand.post({"payload": json.dumps(payload)})
        answered.append(ended - began)
        started.append(await _started(stand.workers, number) - began)
        await _pause()
    expired = await stand.connection.fetchval(
        "select count(*) from agent.event_hist where kind = 'slack.block_actions' and result is not null"
    )
    return answered[WARM_UP:], started[WARM_UP:], expired


async def _started(workers: Sequence[Consumer], number: int) -> float:
    async with asyncio.timeout(30):
        while not (found := [each.started[number] for each in workers if number in each.started]):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    return min(found)


async def _pause() -> None:
    await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))


def _result(times: dict[str, list[float]], backlog: int, expired: int) -> Result:
    p99 = {name: figures.percentile(each, 0.99) for name, each in times.items()}
    rows = [
        (
            name,
            *(figures.milliseconds(figures.percentile(each, share)) for share in (0.5, 0.99)),
            figures.milliseconds(max(each)),
        )
        for name, each in times.items()
    ]
    return Result(
        title="Answers to people",
        how=f"""
            {WORKERS} workers with {SLOTS} slots and one ingest service share the machine with
            PostgreSQL. First, {len(times[ANSWERED]):,} slash commands come one after another, about
            {PAUSE * 1000:g} ms apart, and a handler answers each in the HTTP response; {PACE} other
            events per second arrive as well, whose handlers take 10 ms. Then, {len(times[CLICKED]):,}
            clicks come, while {backlog:,} other events wait and their handlers, of 50 to 150 ms, take
            all slots. The times begin when the client sends its request.
        """,
        table=Table(("from → to", "p50", "p99", "longest"), rows),
        verdicts=[
            Verdict(
                f"HTTP request → response with the handler's answer: p99 at most {LIMITS[ANSWERED] * 1000:g} ms",
                figures.milliseconds(p99[ANSWERED]),
                p99[ANSWERED] <= LIMITS[ANSWERED],
            ),
            Verdict(
                f"click → handler beside a backlog: p99 at most {LIMITS[STARTED] * 1000:g} ms",
                figures.milliseconds(p99[STARTED]),
                p99[STARTED] <= LIMITS[STARTED],
            ),
            Verdict("no click's trigger has expired when its handler starts", str(expired), expired == 0),
        ],
        plots=[Bars("Answers to people, p99", "ms", {name: each * 1000 for name, each in p99.items()})],
    )
