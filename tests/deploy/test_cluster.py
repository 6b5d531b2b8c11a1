"""``kubectl apply -k k8s/`` works on a real cluster, whose nodes use the engine that builds the images."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.deploy.cluster import Cluster, apply, installed
from tests.deploy.commands import version
from tests.scenario import accepted_during, all_answered_once, answered_once, history_is_hypertable

TOKEN = "surelane-demo-api-token"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(images: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:  # noqa: ARG001 - built first
    with installed(tmp_path_factory.mktemp("overlay")) as running:
        running.rolled_out("statefulset/timescaledb")
        running.rolled_out(*(f"deployment/{name}" for name in ("ingest", "worker", "operator", "simulator")))
        yield running


async def test_a_mention_is_answered_and_kept_in_a_hypertable(cluster: Cluster) -> None:
    await answered_once(cluster.system)
    assert await history_is_hypertable(cluster.system)


def test_the_migration_is_a_job_of_this_version_that_failed_no_time(cluster: Cluster) -> None:
    """The Job waits for a database that is still starting, and no pod ends in the state Error."""
    assert cluster.get("job", f"migrate-{version()}")["status"]["succeeded"] == 1
    ended = {
        pod["metadata"]["name"]: pod["status"]["phase"]
        for pod in cluster.get("pods", "-l", "app.kubernetes.io/name=migrate")["items"]
    }
    assert set(ended.values()) == {"Succeeded"}, ended


async def test_the_operators_api_has_a_service_of_its_own_behind_its_token(cluster: Cluster) -> None:
    url, token = cluster.url("operator", 8081) + "/v1/jobs?limit=1", {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as refused, session.get(url, headers=token) as answered:
            assert (refused.status, answered.status) == (401, 200)
        async with session.get(f"{cluster.system.ingest}/v1/jobs", headers=token) as hidden:
            assert hidden.status == 404


def test_applying_again_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    before = {name: cluster.pods(name) for name in ("ingest", "worker", "timescaledb")}
    apply(cluster, tmp_path)
    cluster.rolled_out("deployment/ingest", "deployment/worker")
    assert {name: cluster.pods(name) for name in before} == before


async def test_workers_are_scaled_and_pods_deleted_under_load_and_nothing_is_lost(cluster: Cluster) -> None:
    before = int(cluster.query("select count(*) from agent.event_hist"))

    async def disturb() -> None:
        for replicas in (1, 4, 2):
            await asyncio.to_thread(cluster.kubectl, "scale", "deployment/worker", f"--replicas={replicas}")
            await asyncio.to_thread(cluster.rolled_out, "deployment/worker")
            for name in ("worker", "ingest"):
                victim = random.choice(cluster.pods(name))
                await asyncio.to_thread(cluster.kubectl, "delete", "pod", victim, "--wait=false")
        await asyncio.to_thread(cluster.rolled_out, "deployment/ingest", "deployment/worker")

    async def take_the_database_away() -> None:
        await asyncio.to_thread(cluster.kubectl, "delete", "pod", "timescaledb-0", within=150)
        await asyncio.to_thread(cluster.rolled_out, "statefulset/timescaledb")
        await asyncio.to_thread(cluster.rolled_out, "deployment/ingest", "deployment/worker")

    accepted = await accepted_during(lambda: cluster.system, disturb())
    assert len(accepted) > 10
    accepted += await accepted_during(lambda: cluster.system, take_the_database_away())
    await all_answered_once(cluster.system, accepted)
    assert int(cluster.query("select count(*) from agent.event_hist")) >= before + len(accepted)


async def test_a_rollout_and_back_loses_nothing(cluster: Cluster, next_version: str, tmp_path: Path) -> None:
    async def upgrade() -> None:
        await asyncio.to_thread(apply, cluster, tmp_path, tag=next_version)
        await asyncio.to_thread(cluster.rolled_out, "deployment/ingest", "deployment/worker")

    async def roll_back() -> None:
        for name in ("ingest", "worker"):
            await asyncio.to_thread(cluster.kubectl, "rollout", "undo", f"deployment/{name}")
        await asyncio.to_thread(cluster.rolled_out, "deployment/ingest", "deployment/worker")

    for step in (upgrade, roll_back):
        accepted = await accepted_during(lambda: cluster.system, step())
        assert cluster.query("select version from agent.version") == next_version
        await all_answered_once(cluster.system, accepted)
