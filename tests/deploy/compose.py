"""Run Docker Compose as an operator does, in a project of its own."""

import asyncio
import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import yaml

from tests.deploy.commands import REGISTRY, ROOT, run
from tests.needs import engine_answers, lacking, program
from tests.processes import free_port
from tests.scenario import System

PRODUCTION = "compose.yaml"
DEMONSTRATION = (PRODUCTION, "compose.override.yaml")
ACCOUNTS = {
    "OWNER": "surelane",
    **{name: f"surelane_{name.lower()}" for name in ("INGEST", "WORKER", "OPERATOR")},
}
PASSWORDS = ("POSTGRES_PASSWORD", *(f"SURELANE_{name}_PASSWORD" for name in ACCOUNTS))
SECRETS = {key: secrets.token_urlsafe(16) for key in (*PASSWORDS, "SLACK_SIGNING_SECRET", "SLACK_BOT_TOKEN")}


def addresses(password: str, host: str) -> dict[str, str]:
    """Return the variables for a database elsewhere."""
    at = f"{password}@{host}/surelane"
    return {f"SURELANE_{name}_DATABASE_URL": f"postgresql://{role}:{at}" for name, role in ACCOUNTS.items()}


def database_arguments() -> list[str]:
    """Return the arguments of the database's container in ``compose.yaml``."""
    command = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["db"]["command"]
    assert command[0] == "postgres"
    return [str(argument) for argument in command[1:]]


def database_settings(prefix: str = "") -> dict[str, str]:
    """Return the settings among them whose names begin so."""
    found = (re.match(r"-c(\w+)=(.*)$", argument) for argument in database_arguments())
    return {match[1]: match[2] for match in found if match and match[1].startswith(prefix)}


def flags(files: Iterable[str]) -> Iterator[str]:
    """Return Compose's arguments that name files."""
    for file in files:
        yield from ("-f", file)


def engine() -> str:
    """Return the docker program. Require an engine that answers."""
    docker = program("docker")
    if not engine_answers():
        lacking("no Docker engine answers")
    return docker


def config(*files: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the configuration that Compose reads from the files. This needs no engine."""
    read: dict[str, Any] = json.loads(_printed(files, tuple(sorted((env or {}).items()))))
    return read


@cache
def _printed(files: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> str:
    command = (_compose(), "compose", *flags(files), "--env-file", "/dev/null", "config", "--format=json")
    return run(*command, env=dict(env)).stdout


@cache
def _compose() -> str:
    docker = program("docker")
    if run(docker, "compose", "version", check=False).returncode != 0:
        lacking("Docker's compose plugin is not installed")
    return docker


@dataclass(frozen=True)
class Project:
    """A Compose project."""

    name: str
    env: Mapping[str, str]
    files: tuple[str, ...] = ()

    def compose(self, *arguments: str, within: float = 240, check: bool = True) -> str:
        """Run ``docker compose …``; return its standard output."""
        project = (*flags(self.files), "--env-file", "/dev/null", "-p", self.name)
        command = ("docker", "compose", "--progress=quiet", *project, *arguments)
        return run(*command, env=self.env, within=within, check=check).stdout

    def at(self, version: str) -> "Project":
        """Return the same project with images of another version."""
        return replace(self, env={**self.env, "SURELANE_VERSION": version})

    def images(self, *services: str) -> list[str]:
        """Return the images that services run."""
        return self.compose("ps", "--format={{.Image}}", *services).split()

    def query(self, sql: str, *, role: str = "postgres") -> str:
        """Run a query on the project's database."""
        psql = ("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-U", role, "-d", "surelane", "-c", sql)
        return self.compose("exec", "-T", "db", *psql, within=60).strip()

    async def _query(self, sql: str) -> str:
        return await asyncio.to_thread(self.query, sql)

    @property
    def system(self) -> System:
        """The running system for the scenarios."""
        return System(
            ingest=f"http://127.0.0.1:{self.env['SURELANE_PORT']}",
            slack=f"http://127.0.0.1:{self.env['SURELANE_SIMULATOR_PORT']}/api/",
            query=self._query,
        )


@contextmanager
def project(*files: str, env: Mapping[str, str] | None = None) -> Iterator[Project]:
    """Make a project with its own name and ports. Remove it with its volumes at the end."""
    engine()
    names = ("SURELANE_PORT", "SURELANE_OPERATOR_PORT", "SURELANE_SIMULATOR_PORT")
    ports = {name: str(free_port()) for name in names}
    given = {"SURELANE_REGISTRY": REGISTRY, **ports, **(env or {})}
    made = Project(f"surelane-test-{secrets.token_hex(4)}", given, files)
    try:
        yield made
    except BaseException:
        print(made.compose("logs", "--no-color", "--tail=100", check=False))  # noqa: T201 - pytest shows it
        raise
    finally:
        made.compose("down", "--volumes", "--remove-orphans", "--timeout=20", check=False)
