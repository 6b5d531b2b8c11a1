"""Slack's limits are kept before Slack refuses a call: turns, cancellation, refusals, and a database that is away."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import asyncpg
import pytest

from surelane.calls import Connection, Pool
from surelane_service.engine import Engine
from surelane_service.logs import get_logger
from surelane_service.service_settings import load_settings
from surelane_worker.observing.metrics import Metrics
from surelane_worker.slack import limiter as limiting
from surelane_worker.slack.client import SlackClients, slack_clients
from surelane_worker.slack.limiter import Limiter
from surelane_worker.slack.limits import Rule, SlackBusyError, SlackLimits, rules_of
from surelane_worker.slack.notes import Notebooks
from surelane_worker.slack.replies import Replies
from surelane_worker.worker_settings import WorkerSettings
from tests.system.slack_stand import Stand, slack_stand
from tests.system.worker import ended, worker

SHORT = 0.5
AWAY = 0.05
"""Seconds for which a worker asks nothing of a database that did not answer."""
RULES: dict[str, Sequence[Rule]] = {
    "short": [Rule(5, SHORT)],
    "many": [Rule(40, 4 * SHORT)],
    "long": [Rule(2, 600.0)],
    "minute": [Rule(2, 60.0)],
    "post": [Rule(2, 600.0, per_channel=True), Rule(6, 600.0)],
}


def rules(method: str) -> Sequence[Rule]:
    return RULES[method]


@dataclass
class Calls:
    """Makes calls through limiters, and notes when they were made."""

    limiters: list[Limiter]
    metrics: list[Metrics]
    made: list[float] = field(default_factory=list)

    async def call(self, method: str, channel: str | None = None, worker: int = 0) -> None:
        await self.limiters[worker].admit("T", method, channel)
        self.made.append(asyncio.get_running_loop().time())

    @property
    def statements(self) -> int:
        return sum(sum(metrics.operation.counts.get("lease", ())) for metrics in self.metrics)


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    async with asyncpg.create_pool(database, min_size=0, max_size=4) as opened:
        yield opened


@pytest.fixture
async def calls(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Calls]:
    monkeypatch.setattr(limiting, "AWAY", AWAY)
    monkeypatch.setattr(
        limiting, "PATIENCE", 60.0
    )  # a busy machine does not look like a database that is away
    metrics = [Metrics() for _ in range(3)]
    limiters = [Limiter(SlackLimits(pool), each, rules) for each in metrics]
    yield Calls(limiters, metrics)
    for each in limiters:
        await each.close()


@asynccontextmanager
async def limited(
    pool: Pool, slack: Stand, known: Callable[[str], Sequence[Rule]] = rules_of
) -> AsyncIterator[tuple[SlackClients, Metrics]]:
    """Open a worker's clients for a simulated Slack, whose calls wait by these rules."""
    settings = load_settings(WorkerSettings, database_url="postgresql://x@/x", slack_api_url=slack.api)
    metrics = Metrics()
    limiter = Limiter(SlackLimits(pool), metrics, known)
    async with slack_clients(settings, traced=False, limiter=limiter) as clients:
        yield clients, metrics
    await limiter.close()


async def test_workers_that_flood_a_method_keep_its_limit_together_with_few_statements(calls: Calls) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(12):
            group.create_task(calls.call("short", worker=number % 3))
    made = sorted(calls.made)
    assert all(later - first >= SHORT for first, later in zip(made, made[5:], strict=False))
    assert calls.statements < 12
    waits = [each.slack_wait for each in calls.metrics]
    assert sum(sum(each.counts["short"]) for each in waits) == 12
    assert sum(each.sums["short"] for each in waits) >= SHORT
    before = calls.statements
    for _ in range(12):
        await calls.call("many")
    assert calls.statements - before <= 6, "calls one after another share them too"


async def test_a_channel_that_is_used_up_does_not_hold_up_others(calls: Calls) -> None:
    async with asyncio.timeout(30):
        for channel in ("C1", "C2", "C1", "C2", "C3"):
            await calls.call("post", channel)
    with pytest.raises(SlackBusyError):
        await calls.call("post", "C1")
    await calls.call("post", "C4")
    with pytest.raises(SlackBusyError) as raised:
        await calls.call("post", "C5")
    assert raised.value.after > 500


async def test_a_caller_that_is_cancelled_leaves_its_turn_to_the_next(calls: Calls) -> None:
    for _ in range(5):
        await calls.call("short")
    first = asyncio.create_task(calls.call("short"))
    second = asyncio.create_task(calls.call("short"))
    await asyncio.sleep(0.1)
    first.cancel()
    await second
    assert first.cancelled()
    assert len(calls.made) == 6


async def test_a_refusal_delays_the_calls_of_all_workers(calls: Calls) -> None:
    await calls.call("many", worker=0)
    began = asyncio.get_running_loop().time()
    calls.limiters[0].refused("T", "many", None, 1.0)
    await calls.call("many", worker=0)
    await calls.call("many", worker=1)
    assert all(made - began >= 1.0 for made in calls.made[1:])


async def test_a_limit_that_another_transaction_has_locked_is_kept_by_a_share(
    calls: Calls, connection: Connection
) -> None:
    await calls.call("many")
    async with connection.transaction():
        await connection.execute("select from agent.slack_limit for update")
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(calls.call("many"))


async def test_calls_go_ahead_by_a_share_while_the_database_is_away() -> None:
    async with asyncpg.create_pool("postgresql://x@127.0.0.1:9/x", min_size=0) as away:
        limiter = Limiter(SlackLimits(away), Metrics(), rules)
        async with asyncio.timeout(30):
            for _ in range(4):
                await limiter.admit("T", "many")
            await limiter.admit("T", "long")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await limiter.admit("T", "long")
        await limiter.close()


async def test_a_statement_without_an_answer_holds_up_no_later_call(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiting, "AWAY", AWAY)
    async with asyncpg.create_pool(database, min_size=1, max_size=1) as pool, pool.acquire():
        limiter = Limiter(SlackLimits(pool), Metrics(), rules)
        async with asyncio.timeout(60):
            for _ in range(6):  # the share is four at once
                await limiter.admit("T", "many")
        await limiter.close()


async def test_calls_made_while_the_database_was_away_count_when_it_is_back(
    calls: Calls, connection: Connection
) -> None:
    await connection.execute("alter function agent.lease_slack_calls rename to hidden")
    await calls.call("long", worker=0)
    await connection.execute("alter function agent.hidden rename to lease_slack_calls")
    await asyncio.sleep(2 * AWAY)  # only time ends the pause
    await calls.call("long", worker=0)
    with pytest.raises(SlackBusyError):
        await calls.call("long", worker=1)


async def test_a_call_whose_claim_was_lost_while_it_waited_is_not_made(
    pool: Pool, connection: Connection
) -> None:
    lost = asyncio.Event()

    async def check_claim() -> None:
        if lost.is_set():
            raise asyncio.CancelledError

    async with slack_stand(connection) as slack:
        async with limited(pool, slack, lambda _: [Rule(1, SHORT)]) as (clients, _):
            log = get_logger("test")
            replies = Replies(clients, Notebooks(Engine(connection), log), log, check_claim)
            await replies.client.api_test()
            waiting = asyncio.create_task(replies.client.api_test())
            await asyncio.sleep(0)
            lost.set()
            await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert slack.calls() == ["api.test"]


async def test_a_slack_that_enforces_its_limits_refuses_nothing_and_a_refusal_is_outlasted(
    pool: Pool, connection: Connection
) -> None:
    """Each page of a list is a call of its own. A call that would wait too long is not made."""
    async with slack_stand(connection) as slack, limited(pool, slack) as (clients, metrics):
        slack.simulator.rate_limits.enforce("on")
        slack.fail("rate_limited", "api.test")
        await clients.client.api_test()
        assert metrics._slack_refused["api.test"] == 1  # noqa: SLF001 - it is shown by a collector
        async with asyncio.TaskGroup() as group:
            for name in ("general", "support"):
                for _ in range(4):
                    channel = slack.room(name).id
                    group.create_task(clients.client.chat_postMessage(channel=channel, text="x"))
            for _ in range(12):
                group.create_task(clients.client.users_list())
        pages = [page async for page in await clients.client.users_list(limit=1)]
        assert len(pages) > 1
        assert sum(metrics.slack_wait.counts["users.list"]) == 12 + len(pages)
        assert slack.simulator.rate_limits.refused == 0


async def test_limits_can_be_turned_off(database: str, connection: Connection) -> None:
    async with slack_stand(connection) as slack, worker(database, SLACK_API_URL=slack.api):
        identity, message = await slack.mention("hello")
        await ended(connection, identity)
        assert slack.answers(message) == ["first answer"]
    assert await connection.fetchval("select count(*) from agent.slack_limit") == 0
