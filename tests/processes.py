"""Run our programs as real processes, as an operator does."""

import asyncio
import atexit
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle

import aiohttp

from surelane_dev.processes import ChildProcess
from tests import forked

_FIRST, _LAST, _SHARES = 20_000, 30_000, 50


def _take_share() -> tuple[socket.socket, Iterator[int]]:
    """Take a share of the ports below 32768, which the system gives to no process that asks for any port.

    A share is taken by listening on its first port until this process ends, so no other run of the tests on
    this machine, of whichever clone or user, has the same.
    """
    for share in random.sample(range(_FIRST, _FIRST + _SHARES), _SHARES):
        taken = socket.socket()
        try:
            taken.bind(("127.0.0.1", share))
            taken.listen(1)
        except OSError:
            taken.close()
            continue
        ports = range(share + _SHARES, _LAST, _SHARES)
        return taken, cycle(random.sample(ports, len(ports)))
    raise RuntimeError(f"all {_SHARES} shares of the test ports are taken: too many test runs at once")


_share, _own_ports = _take_share()
atexit.register(_share.close)

OURS = ("DATABASE_URL", "LOG_LEVEL", "SLACK_", "SURELANE_", "OTEL_")


@dataclass
class Service:
    """A running service."""

    port: int
    private_port: int
    child: ChildProcess
    output: list[str] = field(default_factory=list)

    @property
    def process(self) -> asyncio.subprocess.Process:
        return self.child.process

    @property
    def url(self) -> str:
        """The URL of its public port."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def private_url(self) -> str:
        """The URL of its private port."""
        return f"http://127.0.0.1:{self.private_port}"


@asynccontextmanager
async def service(
    module: str,
    env: Mapping[str, str],
    *,
    ready: str = "/readyz",
    ready_within: float = 120,
    ends_within: float = 60,
    exit_code: int = 0,
    imported: bool = True,
) -> AsyncIterator[Service]:
    """Run ``python -m module`` on free ports for the length of the block. Check its exit after SIGTERM.

    If the test ends the process itself, its exit code is not checked.

    Args:
        module: `surelane_ingest`, `surelane_worker`, `surelane_dev.simulator`, …
        env: our settings; none of the caller's environment's are passed on.
        ready: what answers 200 when it can work: a path on the private port or a URL; empty: do not wait.
        ready_within: seconds it may take to get ready.
        ends_within: seconds it may take to exit after SIGTERM.
        exit_code: what it must exit with.
        imported: begin with the modules imported; else with a new interpreter, as in production.
    """
    port, private_port = free_port(), free_port()
    at = {
        "SURELANE_PORT": str(port),
        "SURELANE_PRIVATE_PORT": str(private_port),
        "SURELANE_HOST": "127.0.0.1",
    }
    output: list[str] = []

    def show(line: str) -> None:
        output.append(line)
        print(f"{module}  {line}")  # noqa: T201 - pytest shows it with a failing test

    environment = {**clean_environment(), **at, **env}
    if imported:
        child = ChildProcess(module, await forked.start(module, env=environment), show, signal.SIGKILL)
    else:
        child = await ChildProcess.start(module, sys.executable, "-m", module, on_line=show, env=environment)
    running = Service(port, private_port, child, output)
    try:
        if ready:
            url = ready if "://" in ready else running.private_url + ready
            await _until_ready(child, url, ready_within, output)
        yield running
        if child.exit_code is None and not child.killed:
            code = await child.stop(signal.SIGTERM, ends_within)
            assert code == exit_code, f"{module} exited with {code} after SIGTERM:\n" + "\n".join(output)
    finally:
        child.kill()
        await child.wait()


def clean_environment() -> dict[str, str]:
    """Return the environment without our settings, so that a developer's shell does not change a test."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OURS)}


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1 that no other process gets before it is used.

    It is free on every address, because Docker or a service that listens on all addresses would conflict too.
    """
    while True:
        with socket.socket() as listener, suppress(OSError):
            port = next(_own_ports)
            listener.bind(("", port))
            return port


async def until(condition: Callable[[], object], *, within: float = 90, what: str = "the condition") -> None:
    """Poll ``condition`` until it is true.

    Raises:
        AssertionError: it was not within ``within`` seconds.
    """
    try:
        async with asyncio.timeout(within):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{what} did not come true within {within} s") from None


async def _until_ready(child: ChildProcess, url: str, within: float, output: list[str]) -> None:
    try:
        async with asyncio.timeout(within), aiohttp.ClientSession() as session:
            while child.exit_code is None:
                if await _answers(session, url):
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{url} was not ready within {within} s:\n" + "\n".join(output)) from None
    await child.wait()
    raise AssertionError(
        f"{child.name} ended with {child.exit_code}, and was not ready:\n" + "\n".join(output)
    )


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False
