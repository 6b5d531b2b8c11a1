"""Run PostgreSQL 16, the oldest supported version. The embedded package contains it beside the current one."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import asyncpg

from surelane_dev.data_directory import make_private, program, server_user
from surelane_dev.processes import ChildProcess

OLDEST = 16


@asynccontextmanager
async def oldest_postgres(
    directory: Path, settings: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[str]:
    """Run it in a new directory for the length of the block; yield its superuser's URI."""
    user = server_user(directory)
    programs = program("").parents[1] / "pginstall"
    if user is not None:  # root's umask may have made them unreadable to others
        subprocess.run(["chmod", "-R", "a+rX", programs], check=True)  # noqa: ASYNC221 - done in a moment
    data = directory / str(OLDEST)
    make_private(data, user)
    options = {"listen_addresses": "", "unix_socket_directories": str(data), "fsync": "off"}
    options |= settings
    parts = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    initdb: list[str | Path] = [programs / "bin" / "initdb", "-D", data, "-U", "postgres", "-A", "trust"]
    assert await (await ChildProcess.start("initdb", *initdb, on_line=print, user=user)).wait() == 0
    postgres: list[str | Path] = [programs / "bin" / "postgres", "-D", data, *parts]
    child = await ChildProcess.start("postgres", *postgres, on_line=print, user=user)
    try:
        yield await _answering(f"postgresql://postgres@/postgres?host={data}")
    finally:
        await child.stop(signal.SIGINT, within=60)  # a killed server would leave its shared memory behind


async def _answering(uri: str) -> str:
    async with asyncio.timeout(60):
        while True:
            with suppress(OSError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError):
                connection = await asyncpg.connect(uri)
                await connection.close()
                return uri
            await asyncio.sleep(0.02)
