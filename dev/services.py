"""What `make up` runs: each program's environment, when it is ready, and where to find it."""

import asyncio
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

from dev.accounts import uri_of
from dev.data_directory import program
from dev.settings import UpSettings
from surelane.settings import DEMO_SIGNING_SECRET

DATABASE = "surelane"
PATIENCE = 10.0  # seconds


@dataclass(frozen=True)
class Databases:
    """The URIs the programs connect with."""

    owner: str
    ingest: str
    worker: str

    @classmethod
    def embedded(cls, superuser: str) -> "Databases":
        """One role a program, as in production."""
        return cls(
            owner=uri_of(superuser, role="surelane", database=DATABASE),
            ingest=uri_of(superuser, role="surelane_ingest", database=DATABASE),
            worker=uri_of(superuser, role="surelane_worker", database=DATABASE),
        )

    @classmethod
    def given(cls, uri: str) -> "Databases":
        """The same role for everything."""
        return cls(uri, uri, uri)


@dataclass(frozen=True)
class Service:
    """A program of ours that keeps running."""

    name: str
    command: tuple[str, ...]
    """What follows ``python -m``."""

    environment: dict[str, str]
    ready: str
    """The URL that answers 200 when it can work."""


def services(
    settings: UpSettings, ports: dict[str, int], databases: Databases
) -> tuple[Service, Service, Service]:
    """The simulator, ingest and a worker, wired to each other. What the environment gives wins."""
    at = settings.url
    simulator = f"{at}:{ports['simulator']}"
    shared = {
        "SLACK_SIGNING_SECRET": DEMO_SIGNING_SECRET,
        "SLACK_API_URL": f"{simulator}/api/",
        "SURELANE_HOST": settings.host,
        "SURELANE_OPERATOR_DATABASE_URL": databases.worker,  # whose role is an operator's too
        "PYTHONUNBUFFERED": "1",
        **{name: value for name, value in os.environ.items() if value},
    }
    return (
        Service(
            "simulator",
            ("dev.simulator", "serve"),
            {
                "SURELANE_INGEST_URL": f"{at}:{ports['ingest']}",
                **shared,
                "SURELANE_SIMULATOR_PORT": str(ports["simulator"]),
            },
            f"{simulator}/livez",
        ),
        Service(
            "ingest",
            ("surelane_ingest",),
            {
                **shared,
                "DATABASE_URL": databases.ingest,
                "SURELANE_PORT": str(ports["ingest"]),
                "SURELANE_PRIVATE_PORT": str(ports["ingest_private"]),
            },
            f"{at}:{ports['ingest_private']}/readyz",
        ),
        Service(
            "worker",
            ("surelane_worker",),
            {
                **shared,
                "DATABASE_URL": databases.worker,
                "SURELANE_PRIVATE_PORT": str(ports["worker_private"]),
            },
            f"{at}:{ports['worker_private']}/readyz",
        ),
    )


async def ready(service: Service, say: Callable[[str], None]) -> None:
    """Waits until a service is ready, and says once which one is waited for when that takes long."""
    impatient = time.monotonic() + PATIENCE
    async with aiohttp.ClientSession() as session:
        while not await _answers(session, service.ready):
            if time.monotonic() > impatient:
                say(f"waiting for the {service.name}; {service.ready} says what it waits for")
                impatient = math.inf
            await asyncio.sleep(0.05)


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == HTTPStatus.OK
    except aiohttp.ClientError:
        return False


def where_to_look(settings: UpSettings, ports: dict[str, int], databases: Databases) -> list[str]:
    """What a newcomer wants to know once everything runs."""
    at = settings.url
    client = "psql" if shutil.which("psql") else program("psql")
    opened = "yours, by DATABASE_URL" if settings.database_url else f"{client} '{databases.owner}'"
    return [
        "",
        "Surelane is up. Ctrl-C ends it.",
        f"  talk to the bot  {at}:{ports['simulator']}/",
        f"  ingest           {at}:{ports['ingest']}/slack/events",
        f"  private ports    ingest {at}:{ports['ingest_private']}/, worker {at}:{ports['worker_private']}/",
        f"  database         {opened}",
        "",
    ]
