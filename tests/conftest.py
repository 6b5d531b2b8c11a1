"""Fixtures for every test: a server a session, a fresh database a test."""

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import asyncpg
import pytest
from hypothesis import settings

from surelane.calls import Connection
from tests.databases import Databases, Server, migrated_template, running_server

MEMORY = Path("/dev/shm")
ENOUGH = 2 * 2**30
"""Bytes: more than the servers of a run write."""


def memory_is_free() -> bool:
    """Whether files that only tests need can be kept in memory: there a database is copied in a tenth of the time."""
    if not os.access(MEMORY, os.W_OK):
        return False
    status = os.statvfs(MEMORY)
    return status.f_bavail * status.f_frsize >= ENOUGH and not status.f_flag & os.ST_NOEXEC


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A killed run is one interrupted: it still removes its containers and directories.

    Hypothesis tries the same examples in every run, however slow the machine. ``tmp_path`` is below a directory of this
    run's own: each run of pytest that starts closes the one they share by default to other users, and PostgreSQL
    servers of a running one, which are another user where pytest is root, then lose their data directories.
    """
    if "TMPDIR" not in os.environ and memory_is_free():
        os.environ["TMPDIR"], tempfile.tempdir = str(MEMORY), None
    if not config.option.basetemp and not hasattr(config, "workerinput"):
        config.option.basetemp = tempfile.mkdtemp(prefix="surelane-pytest-")
        config.add_cleanup(lambda: shutil.rmtree(config.option.basetemp, ignore_errors=True))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings.load_profile("ci")


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[Server]:
    """The session's PostgreSQL server, with our roles."""
    async with running_server() as running:
        yield running


@pytest.fixture(scope="session")
async def template(server: Server) -> AsyncIterator[str]:
    """The name of a migrated database that others are copied from."""
    async with migrated_template(server) as name:
        yield name


@pytest.fixture
async def empty_database(server: Server) -> AsyncIterator[str]:
    """The URI of an empty database, as its owner ``surelane``."""
    async with server.fresh() as name:
        yield server.uri(name)


@pytest.fixture(scope="session")
async def databases(server: Server, template: str) -> AsyncIterator[Databases]:
    """Migrated databases, each lent to one test at a time."""
    async with aclosing(Databases(server, template)) as kept:
        yield kept


@pytest.fixture
async def database(server: Server, databases: Databases) -> AsyncIterator[str]:
    """The URI of a migrated database, as its owner ``surelane``."""
    async with databases.lent() as name:
        yield server.uri(name)


@pytest.fixture(scope="module")
async def shared_database(server: Server, databases: Databases) -> AsyncIterator[str]:
    """The URI of a migrated database that the tests of a module share, and empty where they must."""
    async with databases.lent() as name:
        yield server.uri(name)


@pytest.fixture
async def connection(database: str) -> AsyncIterator[Connection]:
    """A connection to ``database``."""
    connected = await asyncpg.connect(database)
    yield connected
    await connected.close()
