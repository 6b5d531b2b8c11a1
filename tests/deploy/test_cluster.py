"""``kubectl apply -k k8s/`` on a real cluster. The images must be in its nodes' engines already."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import aiohttp
import pytest
from slack_sdk.errors import SlackApiError

from tests.deploy.cluster import Cluster, apply, installed
from tests.deploy.commands import version
from tests.scenario import (
    Mention,
    answered_once,
    eventually,
    history_is_hypertable,
    new_mention,
    outcomes,
    replies,
    send,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with installed(tmp_path_factory.mktemp("overlay")) as running:
        running.rolled_out(
            "statefulset/timescaledb", "deployment/ingest", "deployment/worker", "deployment/simulator"
        )
        yield running


async def test_a_mention_is_answered_and_kept_in_a_hypertable(cluster: Cluster) -> None:
    await answered_once(cluster.system)
    assert await history_is_hypertable(cluster.system)


def test_the_migration_is_a_job_of_this_version(cluster: Cluster) -> None:
    assert cluster.get("job", f"migrate-{version()}")["status"]["succeeded"] == 1


def test_applying_again_changes_nothing(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    before = {name: cluster.pods(name) for name in ("ingest", "worker", "timescaledb")}
    apply(cluster, tmp_path_factory.mktemp("again"))
    cluster.rolled_out("deployment/ingest", "deployment/worker")
    assert {name: cluster.pods(name) for name in before} == before


async def test_workers_are_scaled_and_pods_deleted_under_load_and_nothing_is_lost(cluster: Cluster) -> None:
    async def disturb() -> None:
        for replicas in (1, 4, 2):
            await asyncio.to_thread(cluster.kubectl, "scale", "deployment/worker", f"--replicas={replicas}")
            await asyncio.to_thread(cluster.rolled_out, "deployment/worker")
            for name in ("worker", "ingest"):
                victim = random.choice(cluster.pods(name))
                await asyncio.to_thread(cluster.kubectl, "delete", "pod", victim, "--wait=false")
        await asyncio.to_thread(cluster.rolled_out, "deployment/ingest", "deployment/worker")

    accepted = await load_during(cluster, disturb)
    assert len(accepted) > 10
    await handled_once(cluster, accepted)


async def test_the_database_comes_back_with_what_it_holds(cluster: Cluster) -> None:
    before = int(cluster.query("select count(*) from agent.event_hist"))

    async def disturb() -> None:
        await asyncio.to_thread(cluster.kubectl, "delete", "pod", "timescaledb-0", within=150)
        await asyncio.to_thread(cluster.rolled_out, "statefulset/timescaledb")
        await asyncio.to_thread(cluster.rolled_out, "deployment/ingest", "deployment/worker")

    accepted = await load_during(cluster, disturb)
    await handled_once(cluster, accepted)
    assert int(cluster.query("select count(*) from agent.event_hist")) >= before + len(accepted)


async def load_during(cluster: Cluster, disturb: Callable[[], Awaitable[None]]) -> list[Mention]:
    """Sends mentions, a few each second, while something happens; answers those that got a 200."""
    accepted: list[Mention] = []

    async def sending() -> None:
        while True:
            mention = await new_mention(cluster.system)
            with suppress(aiohttp.ClientError, TimeoutError):  # not accepted; Slack would send it again
                if await send(cluster.system, mention) == 200:
                    accepted.append(mention)
            await asyncio.sleep(0.2)

    sender = asyncio.create_task(sending())
    try:
        await disturb()
    finally:
        sender.cancel()
        with suppress(asyncio.CancelledError, SlackApiError):
            await sender
    return accepted


async def handled_once(cluster: Cluster, accepted: list[Mention]) -> None:
    """Every accepted mention is in history, and answered once."""
    expected = {mention.event_id: "completed" for mention in accepted}
    await eventually(lambda: outcomes(cluster.system, accepted), expected, within=180, every=1)
    for mention in accepted:
        assert len(await replies(cluster.system, mention)) == 1, mention.event_id
