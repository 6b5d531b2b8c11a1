"""Define the services of `make up`: their environments, their checks for readiness, their addresses."""

import asyncio
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

from surelane_dev.accounts import uri_of
from surelane_dev.data_directory import program
from surelane_dev.settings import UpSettings
from surelane_service.settings import DEMO_SIGNING_SECRET

DATABASE = "surelane"
SLACK_SECRETS = ("SLACK_SIGNING_SECRET", "SLACK_BOT_TOKEN")
SIMULATOR_READS = (
    *("SURELANE_SIMULATOR_", "SURELANE_INGEST_URL", "LOG_LEVEL", "PATH", "HOME", "TMPDIR"),
    *("LANG", "LC_", "TZ", "PYTHON", "VIRTUAL_ENV"),
)
"""Prefixes of the variables that the simulator gets. None of them is a secret."""
DATABASE_READS = ("SURELANE_OPERATOR_DATABASE_URL", "PG")
PATIENCE = 10.0  # seconds


@dataclass(frozen=True)
class Databases:
    """The URIs with which the programs connect."""

    owner: str
    ingest: str
    worker: str

    @classmethod
    def embedded(cls, superuser: str) -> "Databases":
        """Return a role per program, as in production."""
        return cls(
            owner=uri_of(superuser, role="surelane", database=DATABASE),
            ingest=uri_of(superuser, role="surelane_ingest", database=DATABASE),
            worker=uri_of(superuser, role="surelane_worker", database=DATABASE),
        )

    @classmethod
    def given(cls, uri: str) -> "Databases":
        """Return the same role for every program."""
        return cls(uri, uri, uri)


@dataclass(frozen=True)
class Service:
    """A service of ours."""

    name: str
    command: tuple[str, ...]
    """The module and its arguments, after ``python -m``."""

    environment: dict[str, str]
    ready: str
    """The URL that answers 200 when the service can work."""


def services(
    settings: UpSettings, ports: dict[str, int], databases: Databases
) -> tuple[Service, Service, Service]:
    """Return the simulator, ingest and a worker, connected to each other. Variables of the environment win.

    There is one exception. Without ``SLACK_API_URL`` the simulator stands in Slack's place, and the services do not get
    the real app's secrets. The simulator never gets a secret.
    """
    at = settings.url
    simulator = f"{at}:{ports['simulator']}"
    given = {name: value for name, value in os.environ.items() if value}
    if simulated():
        given = {name: value for name, value in given.items() if name not in SLACK_SECRETS}
    shared = {
        "SLACK_SIGNING_SECRET": DEMO_SIGNING_SECRET,
        "SLACK_API_URL": f"{simulator}/api/",
        **({"SURELANE_SLACK_LIMITS": given.get("SURELANE_SIMULATOR_TIERS", "off")} if simulated() else {}),
        "SURELANE_HOST": settings.host,
        "SURELANE_OPERATOR_DATABASE_URL": databases.worker,  # its role is also a member of agent_operator
        "PYTHONUNBUFFERED": "1",
        **given,
    }
    # If ingest takes the demo secret, it takes the simulator's events. The simulator then gets the database too, to
    # show the status of those events.
    posting = DEMO_SIGNING_SECRET in shared["SLACK_SIGNING_SECRET"].split(",")
    database = {name: shared[name] for name in shared if name.startswith(DATABASE_READS)} if posting else {}
    return (
        Service(
            "simulator",
            ("surelane_dev.simulator", "serve"),
            {
                "SURELANE_INGEST_URL": f"{at}:{ports['ingest']}",
                "SURELANE_SIMULATOR_URL": simulator,
                **{name: value for name, value in shared.items() if name.startswith(SIMULATOR_READS)},
                "SURELANE_HOST": settings.host,
                "SURELANE_SIMULATOR_PORT": str(ports["simulator"]),
                "SURELANE_SIMULATOR_POSTING": "on" if posting else "off",
                **database,
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


def simulated() -> bool:
    """Return whether the simulator stands in Slack's place, because the environment names no other Slack."""
    return not os.environ.get("SLACK_API_URL")


def set_aside() -> str | None:
    """Return a message that names the unused secrets of a real app; ``None`` if there are none."""
    given = [name for name in SLACK_SECRETS if os.environ.get(name)]
    if not simulated() or not given:
        return None
    real = "set SLACK_API_URL=https://slack.com/api/ for the real Slack"
    return f"not used, because the simulator stands in Slack's place: {', '.join(given)}; {real}"


async def ready(service: Service, say: Callable[[str], None]) -> None:
    """Wait until a service is ready. If that takes long, say once which service it is."""
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
    """Return the lines that greet a newcomer once everything runs."""
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
