"""A real Prometheus scrapes a running system and has every series of the rules and the dashboard."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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


Get = Callable[..., Awaitable[Any]]
"""Returns the data of a path of Prometheus' HTTP API, with parameters."""


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
async def prometheus(directory: Path, config: dict[str, Any]) -> AsyncIterator[Get]:
    """Run Prometheus for the length of the block; yield when it is ready."""
    file, address = directory / "prometheus.yaml", f"127.0.0.1:{free_port()}"
    file.write_text(yaml.safe_dump(config))
    command = (
        *(program("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}"),
        *(f"--web.listen-address={address}", "--log.level=error"),
    )
    process = await asyncio.create_subprocess_exec(*command)
    try:
        async with aiohttp.ClientSession() as session:

            async def ready() -> bool:
                try:
                    async with session.get(f"http://{address}/-/ready") as response:
                        return response.status == 200
                except aiohttp.ClientConnectionError:
                    return False

            async def get(path: str, **parameters: str) -> Any:
                async with session.get(f"http://{address}/api/v1/{path}", params=parameters) as response:
                    answer = await response.json()
                assert answer["status"] == "success", answer
                return answer["data"]

            await eventually(ready, expected=True, within=60)
            yield get
    finally:
        process.terminate()
        await process.wait()


async def test_every_panel_has_data_and_no_rule_fails(database: str, tmp_path: Path) -> None:
    program("prometheus")
    async with whole(database) as running, prometheus(tmp_path, configuration(running)) as get:

        async def empty_panels() -> list[str]:
            """Return the dashboard's queries without the data that they should have."""
            return [
                query
                for query in dashboard_queries()
                if not any(part in query for part in MAY_BE_EMPTY)
                and not (await get("query", query=query))["result"]
            ]

        await answered_once(running.system)
        none: list[str] = []
        await eventually(empty_panels, none, within=120)
        rules = [rule for group in (await get("rules"))["groups"] for rule in group["rules"]]
        health = {alert["alert"]: "ok" for alert in alerts()}
        assert {rule["name"]: rule["health"] for rule in rules} == health
        assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
