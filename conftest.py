"""Give a run of the tests one server, and each test a fresh database.

The processes of a run (``-n 2``) share the server and the migrated database that is copied: each takes seconds of
processor time.
"""

import gc
import logging
import os
import shutil
import signal
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import structlog
from anyio.from_thread import start_blocking_portal
from hypothesis import settings

from surelane.calls import Connection
from tests.databases import (
    MEMORY,
    SERVER,
    TEMPLATE,
    Databases,
    Server,
    memory_is_free,
    migrated_template,
    running_server,
)
from tests.needs import unlisted

os.environ.pop(
    "PYTHONDONTWRITEBYTECODE", None
)  # each program that a test starts would compile all that it imports
ROOT = Path(__file__).parent
EVERYDAY = (
    "tests/promises",
    "tests/fleet",
    "tests/sql",
    "tests/unit",
    *(found.relative_to(ROOT).as_posix() for found in ROOT.glob("extensions/*/tests/unit")),
    "dev/tests/unit",
    "dev/tests/system/test_up.py",
)
"""The places of the tests that `make test` runs: all but ``slow`` ones. The Makefile names the same places."""
TOOLS = {
    *("browser", "chaos", "cluster", "container", "fuzz"),
    *("interleavings", "neighbours", "packages", "simulation", "soak", "telemetry"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Define the options of a run."""
    parser.addoption("--slowest-files", type=int, default=0, help="show so many files that took longest")
    parser.addoption("--own-servers", action="store_true", help="each process of the run has its own server")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what ``make test`` runs."""
    for item in items:
        place = item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else ""
        marks = {mark.name for mark in item.iter_markers()}
        if place.startswith(EVERYDAY) and not marks & (TOOLS | {"slow"}):
            item.add_marker("everyday")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the files that took longest, if the option asks for them."""
    took = defaultdict[str, float](float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                took[report.nodeid.partition("::")[0]] += report.duration
    for file in sorted(took, key=took.__getitem__, reverse=True)[: config.getoption("--slowest-files")]:
        terminalreporter.write_line(f"{took[file]:7.1f} s  {file}")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Turn SIGTERM into an interruption, so that a killed run still removes its containers and directories.

    Make Hypothesis try the same examples in every run, on slow machines too. Put ``tmp_path`` below a directory of this
    run. By default all runs share a directory, and each new run closes it to other users. Run as root, our PostgreSQL
    servers are another user and would lose their data directories.
    """
    if "TMPDIR" not in os.environ and memory_is_free():
        os.environ["TMPDIR"], tempfile.tempdir = str(MEMORY), None
    if not config.option.basetemp and not hasattr(config, "workerinput"):
        config.option.basetemp = tempfile.mkdtemp(prefix="surelane-pytest-")
        config.add_cleanup(lambda: shutil.rmtree(config.option.basetemp, ignore_errors=True))
    if hasattr(config, "workerinput"):
        os.environ |= config.workerinput["surelane"]
    else:
        config.pluginmanager.register(SharedServer())
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings.load_profile("ci")
    gc.disable()


class SharedServer:
    """Runs in the process that distributes the tests. Starts the server before the first process that runs them."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._shared: dict[str, str] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a process of the run, as xdist makes it, where the server is."""
        if not self._shared and not node.config.getoption("--own-servers"):
            portal = self._stack.enter_context(start_blocking_portal())
            server = self._stack.enter_context(portal.wrap_async_context_manager(running_server()))
            template = self._stack.enter_context(portal.wrap_async_context_manager(migrated_template(server)))
            self._shared = {SERVER: server.admin, TEMPLATE: template}
        node.workerinput["surelane"] = self._shared

    def pytest_unconfigure(self) -> None:
        """Stop the server."""
        self._stack.close()


def pytest_collection_finish() -> None:
    """Collect garbage from here on alone: collecting the tests makes a million objects that all live to the end."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that skips for a reason which is not listed."""
    report = yield
    if why := unlisted(report):
        report.outcome, report.longrepr = "failed", why
    return report


@pytest.fixture(autouse=True)
def _same_logs() -> Iterator[None]:
    """Undo what a test changes of the logs. Else the process writes them where that test captured its output."""
    root, configured = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    yield
    if structlog.get_config() != configured:
        structlog.configure(**configured)
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[Server]:
    """Run the session's PostgreSQL server, with our roles."""
    async with running_server() as running:
        yield running


@pytest.fixture(scope="session")
async def template(server: Server) -> AsyncIterator[str]:
    """Migrate a database from which others are copied, unless the run has one; return its name."""
    if shared := os.environ.get(TEMPLATE):
        yield shared
        return
    async with migrated_template(server) as name:
        yield name


@pytest.fixture
async def empty_database(server: Server) -> AsyncIterator[str]:
    """Make an empty database; return its URI as its owner ``surelane``."""
    async with server.fresh() as name:
        yield server.uri(name)


@pytest.fixture(scope="session")
async def databases(server: Server, template: str) -> AsyncIterator[Databases]:
    """Keep migrated databases, and lend each to one test at a time."""
    async with aclosing(Databases(server, template)) as kept:
        yield kept


@pytest.fixture
async def database(server: Server, databases: Databases) -> AsyncIterator[str]:
    """Make a migrated database; return its URI as its owner ``surelane``."""
    async with databases.lent() as name:
        yield server.uri(name)


@pytest.fixture(scope="module")
async def shared_database(server: Server, databases: Databases) -> AsyncIterator[str]:
    """Return the URI of a migrated database that the tests of a module share, and empty if necessary."""
    async with databases.lent() as name:
        yield server.uri(name)


@pytest.fixture
async def connection(database: str) -> AsyncIterator[Connection]:
    """Connect to ``database``."""
    connected = await asyncpg.connect(database)
    yield connected
    await connected.close()
