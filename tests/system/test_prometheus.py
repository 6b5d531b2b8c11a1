"""A real Prometheus scrapes a running system and has every series of the rules and the dashboard."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.deploy.monitoring import ALERTS, alerts, dashboard_queries
from tests.needs import program
from tests.processes import free_port
from tests.scenario import answered_once, eventually
from tests.system.whole import Whole, whole

pytestmark = pytest.mark.telemetry

MAY_BE_EMPTY = (
    'error_type!=""',
    "surelane_ingest_ignored",
    "surelane_notification_lag",
    "surelane_vacuum_holder_since",
)
"""Metrics that have series only after a failure, a wake-up, or a transaction of a minute."""


@dataclass(frozen=True)
class Prometheus:
    """A client of Prometheus' HTTP API."""

    url: str
    session: aiohttp.ClientSession

    async def get(self, path: str, **parameters: str) -> Any:
        """Return the data of a path of the API."""
        async with self.session.get(f"{self.url}/api/v1/{path}", params=parameters) as response:
            answer = await response.json()
        assert answer["status"] == "success", answer
        return answer["data"]

    async def query(self, expression: str) -> list[Any]:
        """Return the current value of an expression."""
        result: list[Any] = (await self.get("query", query=expression))["result"]
        return result


def configuration(running: Whole) -> dict[str, Any]:
    """Return our configuration with this system's addresses and a shorter interval, without the operator's API."""
    read: dict[str, Any] = yaml.safe_load(ALERTS.with_name("prometheus.yaml").read_text())
    ports = {"ingest": [running.ingest], "operator": [], "worker": running.workers}
    jobs = [
        {
            "job_name": job["job_name"],
            "static_configs": [
                {"targets": [f"127.0.0.1:{service.private_port}" for service in ports[job["job_name"]]]}
            ],
        }
        for job in read["scrape_configs"]
    ]
    fast = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    return {**read, "global": fast, "rule_files": [str(ALERTS)], "scrape_configs": jobs}


@asynccontextmanager
async def prometheus(directory: Path, config: dict[str, Any]) -> AsyncIterator[Prometheus]:
    """Run Prometheus for the length of the block; yield when it is ready."""
    file, url = directory / "prometheus.yaml", f"127.0.0.1:{free_port()}"
    file.write_text(yaml.safe_dump(config))
    command: Sequence[str] = (
        program("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={url}",
        "--log.level=error",
    )
    process = await asyncio.create_subprocess_exec(*command)
    try:
        async with aiohttp.ClientSession() as session:
            started = Prometheus(f"http://{url}", session)
            await eventually(lambda: _ready(started), True, within=60)
            yield started
    finally:
        process.terminate()
        await process.wait()


async def _ready(server: Prometheus) -> bool:
    try:
        async with server.session.get(f"{server.url}/-/ready") as response:
            return response.status == 200
    except aiohttp.ClientConnectionError:
        return False


async def test_every_panel_has_data_and_no_rule_fails(database: str, tmp_path: Path) -> None:
    program("prometheus")
    async with whole(database) as running, prometheus(tmp_path, configuration(running)) as server:
        await answered_once(running.system)
        none: list[str] = []
        await eventually(lambda: _empty_panels(server), none, within=120)

        rules = [rule for group in (await server.get("rules"))["groups"] for rule in group["rules"]]
        assert {rule["name"]: rule["health"] for rule in rules} == {
            alert["alert"]: "ok" for alert in alerts()
        }
        assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


async def _empty_panels(server: Prometheus) -> list[str]:
    """Return the dashboard's queries without the data that they should have."""
    return [
        query
        for query in dashboard_queries()
        if not any(part in query for part in MAY_BE_EMPTY) and not await server.query(query)
    ]
