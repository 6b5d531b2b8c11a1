"""What `make up` runs: each program's environment, and when it is ready."""

import os
import shutil
from dataclasses import dataclass

from dev.accounts import uri_of
from dev.data_directory import program
from dev.settings import UpSettings
from surelane.settings import DEMO_SIGNING_SECRET

DATABASE = "surelane"


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
    host = settings.host
    simulator = f"http://{host}:{ports['simulator']}"
    shared = {
        "SLACK_SIGNING_SECRET": DEMO_SIGNING_SECRET,
        "SLACK_API_URL": f"{simulator}/api/",
        "SURELANE_HOST": host,
        "SURELANE_OPERATOR_DATABASE_URL": databases.worker,  # whose role is an operator's too
        "PYTHONUNBUFFERED": "1",
        **{name: value for name, value in os.environ.items() if value},
    }
    return (
        Service(
            "simulator",
            ("dev.simulator", "serve"),
            {
                "SURELANE_INGEST_URL": f"http://{host}:{ports['ingest']}",
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
            f"http://{host}:{ports['ingest_private']}/readyz",
        ),
        Service(
            "worker",
            ("surelane_worker",),
            {
                **shared,
                "DATABASE_URL": databases.worker,
                "SURELANE_PRIVATE_PORT": str(ports["worker_private"]),
            },
            f"http://{host}:{ports['worker_private']}/readyz",
        ),
    )


def psql(uri: str) -> str:
    """The command that opens the database by hand, with the bundled client where there is no other."""
    return f"{'psql' if shutil.which('psql') else program('psql')} '{uri}'"
