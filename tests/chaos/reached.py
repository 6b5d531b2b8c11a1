"""A project whose database servers this machine reaches by their containers' addresses.

The scenarios ask them several times a second. A program in a container for each question would starve the system.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import psycopg

from tests.deploy.commands import run
from tests.deploy.compose import Project

PRIMARY = "target_session_attrs=read-write&connect_timeout=3"


@dataclass(frozen=True)
class Reached(Project):
    """A project with the addresses of its servers, as far as they run."""

    servers: ClassVar[Sequence[str]] = ("db",)
    addresses: dict[str, str] = field(default_factory=dict)

    def locate(self) -> None:
        """Look up the addresses again. A container that starts may get another one."""
        wanted = f'{{{{(index .NetworkSettings.Networks "{self.network}").IPAddress}}}}'
        found = self.docker("inspect", f"--format={wanted}", *map(self.container, self.servers)).split("\n")
        self.addresses.update({name: at for name, at in zip(self.servers, found, strict=False) if at})

    def query(self, sql: str, *, role: str = "postgres") -> str:
        """Run a query on the primary.

        Raises:
            AssertionError: there is none, or it refuses the query.
        """
        hosts = ",".join(self.addresses.values())
        try:
            with psycopg.connect(self._uri(hosts, role), autocommit=True) as connection:
                result = connection.execute(sql).pgresult
                value = result.get_value(0, 0) if result and result.ntuples else None
                return (value or b"").decode()
        except psycopg.Error as error:
            raise AssertionError(str(error)) from error

    def _uri(self, hosts: str, role: str) -> str:
        return f"postgresql://{role}:{self.env.get('POSTGRES_PASSWORD', 'demo')}@{hosts}/surelane?{PRIMARY}"

    @property
    def network(self) -> str:
        """The network between the services and the servers."""
        return f"{self.name}_database"

    def container(self, server: str) -> str:
        """Return the name of a server's container."""
        return f"{self.name}-{server}-1"

    @staticmethod
    def docker(*arguments: str) -> str:
        """Run ``docker …``; return its standard output."""
        return run("docker", *arguments, within=120).stdout
