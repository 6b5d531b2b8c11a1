"""Three PostgreSQL servers under Patroni, as compose/ha.yaml runs them: see, disturb and steer them."""

import asyncio
import json
import time
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import asyncpg

from surelane.calls import DRIVER_ERRORS, Connection
from surelane_dev.accounts import PASSWORD
from tests.chaos.reached import Reached

SERVERS = ("db1", "db2", "db3")
STEERS = b64encode(f"patroni:{PASSWORD}".encode()).decode()
PATIENCE = 120.0
"""Seconds that Patroni may take for what it does by itself. Its own bounds are some 25."""


@dataclass(frozen=True)
class Cluster(Reached):
    """A project whose database is the primary of three servers."""

    servers = SERVERS

    def uri(self, server: str, role: str = "postgres") -> str:
        """Return a server's URI for programs on this machine."""
        return f"postgresql://{role}:{PASSWORD}@{self.addresses[server]}:5432/surelane?sslmode=disable"

    def ask(self, server: str, path: str, body: Mapping[str, Any] | None = None, method: str = "GET") -> str:
        """Ask a server's Patroni, and return its answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self.addresses[server]}:8008/{path}",
            data,
            {"Content-Type": "application/json", "Authorization": f"Basic {STEERS}"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=3 if body is None else 60) as response:
            answer: bytes = response.read()
            return answer.decode()

    async def members(self) -> dict[str, dict[str, Any]]:
        """Return what Patroni says of each server. It is empty while none answers."""
        for server in SERVERS:
            with suppress(OSError):
                answer = json.loads(await asyncio.to_thread(self.ask, server, "cluster"))
                return {each["name"]: each for each in answer["members"]}
        return {}

    async def primary(self) -> str:
        """Return the server that is the primary."""
        return next(name for name, each in (await self.members()).items() if each["role"] == "leader")

    async def whole(self, second: str = "replica") -> None:
        """Wait until two servers follow the primary on its timeline, one of them in the role ``second``."""
        async with asyncio.timeout(PATIENCE):
            while not _whole((await self.members()).values(), second):  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.2)

    async def promoted(self, former: str) -> tuple[str, float]:
        """Wait until another server than ``former`` takes writes. Return its name, and the time."""
        others = {name: self.uri(name) for name in SERVERS if name != former}
        async with asyncio.timeout(PATIENCE):
            while True:
                for name, uri in others.items():
                    with suppress(*DRIVER_ERRORS):
                        if not await _asked(uri, "select pg_is_in_recovery()"):
                            return name, time.time()
                await asyncio.sleep(0.05)

    async def connections_on_standbys(self) -> dict[str, int]:
        """Count the services' connections on each server that is not the primary."""
        members = (await self.members()).items()
        count = "select count(*) from pg_stat_activity where application_name like 'surelane-%'"
        return {
            name: await _asked(self.uri(name), count) for name, each in members if each["role"] != "leader"
        }

    @asynccontextmanager
    async def connected(self, server: str, role: str = "surelane") -> AsyncIterator[Connection]:
        """Connect to a server for the length of the block."""
        connection = await asyncpg.connect(self.uri(server, role))
        try:
            yield connection
        finally:
            await connection.close()

    def separate(self, server: str) -> None:
        """Take a server off the services' and the servers' networks."""
        for network in (self.network, self.consensus):
            self.docker("network", "disconnect", network, self.container(server))

    def reunite(self, server: str) -> None:
        """Bring a server back to the networks, under its own name and address."""
        back = ("network", "connect", f"--ip={self.addresses[server]}", f"--alias={server}")
        self.docker(*back, self.network, self.container(server))
        self.docker("network", "connect", self.consensus, self.container(server))

    @property
    def consensus(self) -> str:
        """The network between the servers and etcd."""
        return f"{self.name}_consensus"


def _whole(members: Collection[Mapping[str, Any]], second: str) -> bool:
    states = sorted(each["state"] for each in members)
    lines = {each.get("timeline") for each in members}
    roles = {each["role"] for each in members}
    return states == ["running", "streaming", "streaming"] and len(lines) == 1 and {"leader", second} <= roles


async def _asked(uri: str, query: str) -> Any:
    connection = await asyncpg.connect(uri, timeout=2)
    try:
        return await connection.fetchval(query, timeout=2)
    finally:
        connection.terminate()
