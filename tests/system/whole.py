"""Run the whole system as processes on one machine: simulator, ingest, workers, and their own database."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import asyncpg

from tests.databases import as_role
from tests.processes import Service, free_port, service
from tests.scenario import System


@dataclass(frozen=True)
class Whole:
    """A running system and its processes."""

    system: System
    ingest: Service
    workers: list[Service]


@asynccontextmanager
async def whole(
    database: str,
    *,
    workers: int = 1,
    env: Mapping[str, str] | None = None,
    worker_env: Mapping[str, str] | None = None,
) -> AsyncIterator[Whole]:
    """Run the system for the length of the block, each part as its own role.

    ``env`` goes to ingest and to the workers, ``worker_env`` to the workers alone.
    """
    port = free_port()
    slack = f"http://127.0.0.1:{port}"
    shared = {"SLACK_API_URL": f"{slack}/api/", "SURELANE_SLACK_LIMITS": "off", **(env or {})}
    signing = {"SLACK_SIGNING_SECRET": System.signing_secret}
    async with AsyncExitStack() as stack:

        async def start(module: str, role: str, *settings: Mapping[str, str]) -> Service:
            given = {name: value for each in settings for name, value in each.items()}
            return await stack.enter_async_context(
                service(module, {"DATABASE_URL": as_role(database, role), **shared, **given})
            )

        simulator = {"SURELANE_SIMULATOR_PORT": str(port)}
        await stack.enter_async_context(service("surelane_dev.simulator", simulator, ready=f"{slack}/livez"))
        ingest = await start("surelane_ingest", "surelane_ingest", signing)
        running = [
            await start("surelane_worker", "surelane_worker", worker_env or {}) for _ in range(workers)
        ]
        connection = await asyncpg.connect(database)
        stack.push_async_callback(connection.close)

        async def query(statement: str) -> str:
            return str(await connection.fetchval(statement))

        yield Whole(System(ingest.url, f"{slack}/api/", query), ingest, running)
