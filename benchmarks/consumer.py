"""Observe a process that handles events, ours or a peer's: its count, its memory, its exit."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

from benchmarks.programs.tally import MARK
from surelane_dev.processes import ChildProcess

OURS = ("DATABASE_URL", "LOG_LEVEL", "SLACK_", "SURELANE_", "OTEL_", "PGQUEUER_", "PROCRASTINATE_", "AWA_")
STOP_WITHIN = 60.0


@dataclass(frozen=True)
class Moment:
    """The events that a process had handled and the CPU seconds that it had used at a moment.

    ``instructions`` are those of its main thread since its first event; ``None`` where they cannot be counted.
    """

    count: int
    at: float
    cpu: float
    instructions: int | None = None


class Consumer:
    """A running process that handles events."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.moments: list[Moment] = []
        self.started: dict[int, float] = {}
        """The times at which the handlers of numbered events started."""
        self.ended: list[float] = []
        """The times at which handlers ended that report it."""
        self.killed = False
        self._output: list[str] = []
        self._news = asyncio.Event()
        self._child: ChildProcess | None = None

    async def start(self, module: Sequence[str], env: Mapping[str, str]) -> None:
        """Start ``python -m`` with our environment, without the caller's settings."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        command = (sys.executable, "-m", *module)
        self._child = await ChildProcess.start(self.name, *command, on_line=self._read, env={**clean, **env})

    def _read(self, line: str) -> None:
        if not line.startswith(MARK):
            self._output.append(line)
            return
        told = json.loads(line)
        match told["bench"]:
            case "count":
                self.moments.append(Moment(told["count"], told["at"], told["cpu"], told.get("instructions")))
            case "started":
                self.started[told["number"]] = told["at"]
            case "ended":
                self.ended.append(told["at"])
        self._news.set()

    @property
    def child(self) -> ChildProcess:
        """The process."""
        assert self._child is not None, "not started"
        return self._child

    @property
    def count(self) -> int:
        """The number of handled events, rounded down to a thousand."""
        return self.moments[-1].count if self.moments else 0

    async def handled(self, count: int, within: float) -> None:
        """Wait until ``count`` events are handled.

        Raises:
            RuntimeError: the process ended, or the time is up.
        """
        try:
            async with asyncio.timeout(within):
                while self.count < count:
                    self._check()
                    await self.news()
        except TimeoutError:
            raise RuntimeError(
                f"{self.name} handled {self.count} of {count} events in {within:g} s:\n{self.tail}"
            ) from None

    async def news(self, within: float = 0.2) -> None:
        """Wait until the process reports something, or for a short time."""
        self._news.clear()
        try:
            async with asyncio.timeout(within):
                await self._news.wait()
        except TimeoutError:
            return

    def _check(self) -> None:
        if self.child.exit_code not in (None, 0):
            raise RuntimeError(f"{self.name} ended with {self.child.exit_code}:\n{self.tail}")

    @property
    def tail(self) -> str:
        """The end of its output."""
        return "\n".join(self._output[-20:])

    def cpu_per_event(self) -> float:
        """CPU seconds per event, from the first handler's start to the last report of a thousand events."""
        first, last = self.moments[0], self.moments[-1]
        return (last.cpu - first.cpu) / (last.count - first.count)

    def rss(self) -> int:
        """The resident memory in bytes."""
        size: int = psutil.Process(self.child.process.pid).memory_info().rss
        return size

    async def kill(self) -> None:
        """Kill it by SIGKILL, and wait until it has ended."""
        self.killed = True
        self.child.kill()
        await self.child.wait()

    async def end(self, *, itself: bool) -> None:
        """Wait until it exits. Send SIGTERM first unless it exits by ``itself``; it then settles its last outcomes.

        Raises:
            RuntimeError: it failed.
        """
        code = await (self.child.wait() if itself else self.child.stop(signal.SIGTERM, STOP_WITHIN))
        if code != 0:
            raise RuntimeError(f"{self.name} exited with {code}:\n{self.tail}")


@asynccontextmanager
async def running(
    name: str, *module: str, env: Mapping[str, str] | None = None, ends: bool = False
) -> AsyncIterator[Consumer]:
    """Run a process for the length of the block, then stop it. Wait for one that ``ends`` by itself."""
    consumer = Consumer(name)
    await consumer.start(module, env or {})
    try:
        yield consumer
        if not consumer.killed:
            await consumer.end(itself=ends)
    finally:
        consumer.child.kill()
        await consumer.child.wait()


@asynccontextmanager
async def worker(
    uri: str, handlers: str = "counting", *, concurrency: int = 10, **settings: str
) -> AsyncIterator[Consumer]:
    """Run our worker service as in production, with handlers of ``benchmarks.programs.handlers``."""
    env = {
        "DATABASE_URL": uri,
        "LOG_LEVEL": "warning",
        "SURELANE_HANDLERS": f"benchmarks.programs.handlers:{handlers}",
        "SURELANE_CONCURRENCY": str(concurrency),
        "SURELANE_HOST": "127.0.0.1",
        "SURELANE_PRIVATE_PORT": "0",
        **settings,
    }
    async with running("surelane", "surelane_worker", env=env) as consumer:
        yield consumer
