"""Workers that flood a Slack that enforces its limits are never refused; a refusal is outlasted."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

import pytest
from slack_sdk.errors import SlackApiError

from surelane.calls import Connection
from surelane_dev.simulator.client import SimulatorError
from tests.metrics import exported, value
from tests.processes import Service
from tests.scenario import eventually
from tests.system.slack_app import simulated
from tests.system.slack_stand import Stand, slack_stand
from tests.system.worker import ended, enqueue, worker

WORKERS = 3


@dataclass(frozen=True)
class System:
    """A Slack that enforces its limits, and what floods it."""

    slack: Stand
    connection: Connection
    database: str

    def worker(self, limits: str = "on", **others: str) -> AbstractAsyncContextManager[Service]:
        handlers = {"SURELANE_HANDLERS": "tests.system.slack_flood:handlers"}
        given = {"SLACK_API_URL": self.slack.api, "SURELANE_SLACK_LIMITS": limits, **handlers}
        return worker(self.database, **given, **others)

    async def call(self, method: str) -> int:
        return await enqueue(self.connection, "call", {"method": method})


@pytest.fixture
async def system(database: str, connection: Connection) -> AsyncIterator[System]:
    async with slack_stand(connection) as stand:
        stand.simulator.rate_limits.enforce("on")
        yield System(stand, connection, database)


async def test_workers_that_flood_slack_are_never_refused(system: System) -> None:
    posts = [{"channel": name} for name in ("C0GENERAL1", "C0SUPPORT1") for _ in range(8)]
    jobs = [await enqueue(system.connection, "post", post) for post in posts]
    jobs += [await system.call("users.list") for _ in range(20)]
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(system.worker()) for _ in range(WORKERS)]
        for job in jobs:
            row = await ended(system.connection, job, within=90)
            assert (row["outcome"], row["attempts"]) == ("completed", 1)
        statements = sum([await leases(each) for each in workers])
    assert system.slack.simulator.rate_limits.refused == 0
    assert 0 < statements < len(jobs)
    assert len(system.slack.calls()) == len(jobs)


async def test_pages_count_as_calls_and_a_refusal_is_outlasted_and_counted(system: System) -> None:
    system.slack.fail("rate_limited", "api.test")
    async with system.worker() as running:
        pages = int((await ended(system.connection, await enqueue(system.connection, "list")))["result"])
        assert pages > 1
        name = "surelane_slack_wait_seconds_count"
        assert await counted(running, name, surelane_slack_method="users.list") == pages
        row = await ended(system.connection, await system.call("api.test"))
        assert (row["outcome"], row["attempts"]) == ("completed", 1)
        name = "surelane_slack_rate_limited_total"
        assert await counted(running, name, surelane_slack_method="api.test") == 1


async def test_event_whose_call_would_wait_too_long_is_snoozed(system: System) -> None:
    """It waits for two minutes, without an attempt that counts."""
    snoozed = (
        "select exists (select from agent.event where claimed_by is null and attempts = 0"
        " and vt > agent.clock() + interval '1 minute')"
    )
    for _ in range(4):
        await system.call("conversations.history")
    async with system.worker("non-marketplace", SURELANE_DRAIN_TIMEOUT="100ms"):
        await eventually(lambda: system.connection.fetchval(snoozed), expected=True, within=60)
    assert len(system.slack.calls()) == 1


async def test_limits_can_be_turned_off(system: System) -> None:
    async with system.worker("off") as running:
        await ended(system.connection, await system.call("api.test"))
        assert await leases(running) == 0
    assert await system.connection.fetchval("select count(*) from agent.slack_limit") == 0


async def test_simulator_enforces_the_tiers_that_it_is_told() -> None:
    async with simulated() as pair:
        with pytest.raises(SimulatorError, match="enforced"):
            await pair.control.request("PUT", "/control/tiers", {"enforced": "some"})
        await pair.control.request("PUT", "/control/tiers", {"enforced": "on"})
        for _ in range(20):
            await pair.web.users_list()
        with pytest.raises(SlackApiError) as refused:
            await pair.web.users_list()
        assert refused.value.response.status_code == 429
        assert 0 < int(refused.value.response.headers["Retry-After"]) <= 60
        shown = await pair.control.request("GET", "/control/tiers")
        assert shown == {"enforced": "on", "refused": 1}


async def leases(running: Service) -> float:
    """Return how many statements a worker sent about Slack's limits."""
    name = "messaging_client_operation_duration_seconds_count"
    return await counted(running, name, messaging_operation_name="lease")


async def counted(running: Service, name: str, **labels: str) -> float:
    """Return a metric of a worker, with these labels; 0 if it has none."""
    families = await exported(running.private_url)
    return value({name: families[name.removesuffix("_count")]}, name, **labels) or 0
