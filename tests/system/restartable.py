"""Run a database server of a test's own, to stop, kill, freeze and start again."""

import contextlib
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import psutil  # type: ignore[import-untyped]

from surelane.calls import Connection
from surelane_dev.accounts import OWNER, prepare, uri_of
from surelane_dev.data_directory import MAJOR, make, make_private, program, server_user
from surelane_dev.postgres import SUPERUSER, Postgres, embedded
from surelane_dev.processes import ChildProcess
from tests.databases import CRASHABLE, migrate

NAME = "surelane"


class Restartable:
    """An embedded PostgreSQL with a migrated database. It keeps its commits over restarts."""

    def __init__(self, directory: Path, settings: Mapping[str, str] = CRASHABLE) -> None:
        self._directory = directory
        self._settings = settings
        self._stack = AsyncExitStack()
        self._postgres: Postgres | None = None
        self._admin = ""

    def uri(self, role: str = OWNER) -> str:
        """The database's URI, the same before and after a restart."""
        return uri_of(self._admin, role=role, database=NAME)

    async def start(self) -> None:
        self._postgres = await self._stack.enter_async_context(
            embedded(self._directory, on_line=print, settings=self._settings)
        )
        assert self._admin in ("", self._postgres.uri), "the server moved"
        self._admin = self._postgres.uri

    async def prepare(self) -> None:
        """Make the roles and the database, and migrate it."""
        await prepare(self._admin, NAME)
        await migrate(self.uri())

    async def copy(self, directory: Path, recovery: Mapping[str, str] | None = None) -> "Restartable":
        """Copy the running server, as a standby or to recover by ``recovery``. The copy does not run yet."""
        user = server_user(make(directory))
        make_private(directory / MAJOR, user)
        socket = self._admin.partition("host=")[2]
        command = (program("pg_basebackup"), "-D", directory / MAJOR, "-h", socket, "-U", SUPERUSER)
        standby = ("-R",) if recovery is None else ()
        child = await ChildProcess.start(
            "copy", *command, *standby, "--checkpoint=fast", on_line=print, user=user
        )
        assert await child.wait() == 0
        if recovery is not None:
            (directory / MAJOR / "recovery.signal").touch()
        return Restartable(directory, {**CRASHABLE, **(recovery or {})})

    async def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server. SIGINT is a fast shutdown, SIGQUIT an immediate one, like a crash."""
        self._process().send_signal(how)
        await self._stack.aclose()
        self._postgres = None

    async def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        await self.stop(how)
        await self.start()

    def freeze(self) -> None:
        """Freeze every process of the server: connections stay open, and nothing answers."""
        postmaster = self._process()
        postmaster.suspend()  # first: then no process begins
        for process in postmaster.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def thaw(self) -> None:
        """Let a frozen server continue."""
        postmaster = self._process()
        for process in (*postmaster.children(recursive=True), postmaster):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        connection = await asyncpg.connect(self.uri())
        try:
            yield connection
        finally:
            await connection.close()

    async def execute(self, statement: str) -> None:
        """Run one statement as the superuser."""
        connection = await asyncpg.connect(self._admin)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def aclose(self) -> None:
        """End the server, frozen or not."""
        if self._postgres is not None:
            self.thaw()
        await self._stack.aclose()

    def _process(self) -> psutil.Process:
        assert self._postgres is not None, "the server does not run"
        return psutil.Process(self._postgres.child.process.pid)


@asynccontextmanager
async def restartable(settings: Mapping[str, str] = CRASHABLE) -> AsyncIterator[Restartable]:
    """Run a server with a migrated database for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="surelane-outage-") as directory:
        server = Restartable(Path(directory), settings)
        try:
            await server.start()
            await server.prepare()
            yield server
        finally:
            await server.aclose()
