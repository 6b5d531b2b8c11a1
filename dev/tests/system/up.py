"""Run `surelane dev` as a process, on ports of its own."""

import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import psutil  # type: ignore[import-untyped]

from surelane_dev.processes import ChildProcess
from surelane_dev.simulator.client import SimulatorClient
from tests.processes import clean_environment, free_port, until
from tests.scenario import System

LONG = 300
"""Seconds, a hundred times what most of these signals take on a quiet machine."""
PORTS = [f"SURELANE_{name}PORT" for name in ("", "PRIVATE_", "OPERATOR_", "WORKER_PRIVATE_", "SIMULATOR_")]


@dataclass
class Up:
    """A running `surelane dev`."""

    child: ChildProcess
    output: list[str]
    family: list[psutil.Process] = field(default_factory=list)
    """All its processes once it was up, itself included."""

    @property
    def shown(self) -> str:
        return "\n".join(self.output)

    def found(self, pattern: str) -> str:
        """Return the match of the pattern's group in the output."""
        match = re.search(pattern, self.shown, re.MULTILINE)
        assert match, f"{pattern!r} is not in:\n{self.shown}"
        return match[1]

    @property
    def page(self) -> str:
        return self.found(r"talk to the bot +(http\S+)/$")

    @property
    def ingest(self) -> str:
        return self.found(r"ingest +(http\S+)/slack/events$")

    @property
    def database(self) -> str:
        """The URI with which people open the database."""
        return self.found(r"database .*'(postgresql:\S+)'$")

    @property
    def system(self) -> System:
        async def query(statement: str) -> str:
            connection = await asyncpg.connect(self.database)
            try:
                return str(await connection.fetchval(statement))
            finally:
                await connection.close()

        return System(self.ingest, f"{self.page}/api/", query)

    def member(self, command: str) -> psutil.Process:
        """Return the process whose command line contains this."""
        for process in self.family:
            with suppress(psutil.NoSuchProcess):  # PostgreSQL's own come and go
                if command in " ".join(process.cmdline()):
                    return process
        raise AssertionError(f"no process runs {command}")

    async def ready(self) -> None:
        """Wait until it says that it is up."""
        await until(
            lambda: "Surelane is up" in self.shown or self.child.exit_code is not None,
            within=LONG,
            what="`surelane dev`",
        )
        assert self.child.exit_code is None, f"it ended with {self.child.exit_code}:\n{self.shown}"
        await self.shows(r"^ +database +\S")
        itself = psutil.Process(self.child.process.pid)
        self.family = [itself, *itself.children(recursive=True)]

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        return await self.child.stop(number, within=LONG)

    async def shows(self, pattern: str, times: int = 1) -> None:
        """Wait until its output has a match of the pattern, or as many."""
        await until(lambda: len(re.findall(f"(?m){pattern}", self.shown)) >= times, within=LONG, what=pattern)

    async def gone(self) -> None:
        """Wait until none of its processes runs."""
        await until(lambda: not any(map(alive, self.family)), within=LONG, what="the end of every process")


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@asynccontextmanager
async def up(
    data: Path,
    env: Mapping[str, str] | None = None,
    *,
    project: Path | None = None,
    python: str | Path = sys.executable,
    options: Sequence[str] = (),
) -> AsyncIterator[Up]:
    """Run it for the length of the block, in a project's directory. Kill all its remaining processes afterwards."""
    ports = {name: str(free_port()) for name in PORTS}
    output: list[str] = []

    def show(line: str) -> None:
        output.append(line)
        print(line)

    child = await ChildProcess.start(
        "up",
        *(python, "-m", "surelane_operator.cli", "dev", *options),
        env={**clean_environment(), **ports, "SURELANE_DATA_DIR": str(data), **(env or {})},
        on_line=show,
        where=project,
    )
    running = Up(child, output)
    try:
        yield running
    finally:
        child.kill()
        await child.wait()
        for process in running.family:
            with suppress(psutil.NoSuchProcess):
                process.kill()


async def say(slack: SimulatorClient, text: str) -> dict[str, Any]:
    """Mention the bot in #general; return the message."""
    message: dict[str, Any] = (await slack.say(text, mention=True))["message"]
    return message


async def answer_to(slack: SimulatorClient, said: str | dict[str, Any]) -> str:
    """Return the bot's answer to a message, or to a new one with a text."""
    message = await say(slack, said) if isinstance(said, str) else said
    return str((await slack.reply(message, LONG))["text"])


async def status(url: str) -> int:
    async with aiohttp.request("GET", url) as response:
        return response.status


def leftovers(data: Path) -> list[str]:
    """Return the sockets, lock and pid files under a data directory."""
    names = ("postmaster.pid", ".s.PGSQL.5432", ".s.PGSQL.5432.lock")
    return [name for _, _, files in os.walk(data) for name in files if name in names]
