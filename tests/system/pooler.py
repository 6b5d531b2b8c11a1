"""Run a real PgBouncer in transaction mode before the tests' server."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg

from surelane.calls import DRIVER_ERRORS
from surelane_dev.processes import ChildProcess
from tests.needs import program
from tests.processes import free_port

NOBODY = 65534

CONFIG = """\
[databases]
{database} = {target}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
"""


@asynccontextmanager
async def pooled(uri: str, size: int = 1) -> AsyncIterator[str]:
    """Run PgBouncer before the database of ``uri``, with so many connections; yield the URI that goes through it."""
    bouncer, port = program("pgbouncer"), free_port()
    parts = urlsplit(uri)
    database, host = parts.path.lstrip("/"), parts.hostname or parse_qs(parts.query)["host"][0]
    target = {"host": host, "port": parts.port or 5432, "dbname": database, "user": parts.username}
    if parts.password:
        target["password"] = parts.password
    text = " ".join(f"{name}='{value}'" for name, value in target.items())
    with tempfile.TemporaryDirectory(prefix="surelane-pooler-") as directory:
        config = Path(directory) / "pgbouncer.ini"
        config.write_text(CONFIG.format(database=database, target=text, port=port, size=size))
        user = _user(Path(host), Path(directory), config)
        child = await ChildProcess.start(
            "pgbouncer", bouncer, config, on_line=print, env={**os.environ}, user=user
        )
        try:
            through = f"postgresql://{parts.username}@127.0.0.1:{port}/{database}"
            await _until_it_answers(through)
            yield through
        finally:
            child.kill()
            await child.wait()


def _user(socket: Path, directory: Path, config: Path) -> int | None:
    """Return the user to run it as. It refuses to run as root; the user must be able to use the server's socket."""
    if os.geteuid() != 0:
        return None
    directory.chmod(0o755)
    config.chmod(0o644)
    return socket.stat().st_uid if socket.is_absolute() else NOBODY


async def _until_it_answers(uri: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                connection = await asyncpg.connect(uri, statement_cache_size=0)
            except DRIVER_ERRORS:
                await asyncio.sleep(0.05)
            else:
                await connection.close()
                return
