"""Define the plugin's fixtures: ``slack``, ``bot``, ``handlers``, ``surelane_slack`` and ``surelane_server``.

pytest loads this module in every run, so it imports the rest of the package only where a test uses a fixture.
"""

import sys
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from slack_bolt import App
    from slack_bolt.async_app import AsyncApp

    from surelane_dev.testing.bot import Bot
    from surelane_dev.testing.database import PostgresServer
    from surelane_dev.testing.fleets.database import Database
    from surelane_dev.testing.slack import Slack
    from surelane_worker import Handlers

INI = "surelane_handlers"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Define the option of ``pytest.ini`` or ``[tool.pytest.ini_options]``."""
    parser.addini(INI, "module:attribute of the handlers to test; default: [tool.surelane] handlers")


@pytest.fixture(scope="session")
def surelane_server() -> "Iterator[PostgresServer]":
    """Run the session's PostgreSQL, with a migrated database that tests copy."""
    from surelane_dev.testing.database import running_server  # noqa: PLC0415

    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def virtual_database(surelane_server: "PostgresServer") -> "Iterator[Database]":
    """Copy a migrated database, whose clock is that of the tests' virtual time. Each fleet begins with it empty."""
    from surelane_dev.testing.fleets import virtual_databases  # noqa: PLC0415

    with virtual_databases(surelane_server.admin, surelane_server.template) as database:
        yield database


@pytest.fixture(scope="session")
def surelane_slack(surelane_server: "PostgresServer") -> Iterator[str]:
    """Run a simulated Slack for Bolt apps that are imported: such an app asks Slack whose token it has."""
    from surelane_dev.testing.bolt import in_place_of_slack  # noqa: PLC0415
    from surelane_dev.testing.bot import running_slack  # noqa: PLC0415

    with surelane_server.portal.wrap_async_context_manager(running_slack()) as api, in_place_of_slack(api):
        yield api


@pytest.fixture
def handlers(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> "Handlers | App | AsyncApp":
    """Return the handlers to test: those of the setting, or of ``[tool.surelane]``. Override it to test others."""
    from surelane_dev.project import find_project  # noqa: PLC0415
    from surelane_worker.extensions import extension_for  # noqa: PLC0415
    from surelane_worker.wiring import load_handlers, load_named  # noqa: PLC0415

    path = pytestconfig.getini(INI) or find_project(pytestconfig.rootpath).handlers
    if not path:
        pytest.fail(
            f"no handlers to test: set handlers in [tool.surelane] of pyproject.toml, or {INI} of pytest,"
            " or define a fixture named handlers",
            pytrace=False,
        )
    if (root := str(pytestconfig.rootpath)) not in sys.path:
        sys.path.insert(0, root)
    if find_spec("slack_bolt") is not None:
        request.getfixturevalue("surelane_slack")
    named = load_named(str(path))
    return named if extension_for(named) else load_handlers(str(path))


async def _bot(
    surelane_server: "PostgresServer", handlers: "Handlers | App | AsyncApp", pytestconfig: pytest.Config
) -> "AsyncIterator[Bot]":
    """Run the bot: ingest, a worker with the handlers, and a simulated Slack, on a database of the test's own."""
    from surelane_dev.project import find_project  # noqa: PLC0415
    from surelane_dev.testing.bot import running_bot  # noqa: PLC0415

    project = find_project(pytestconfig.rootpath)
    async with running_bot(surelane_server, handlers, project.manifest, project.model) as running:
        yield running


def _missing() -> None:
    from surelane.errors import INSTALL  # noqa: PLC0415

    needs = f"the fixtures bot and slack need pytest-asyncio: {INSTALL} 'surelane-dev[testing]'"
    pytest.fail(needs, pytrace=False)


bot: Any
if find_spec("pytest_asyncio") is None:  # pytest loads this module also where a team tests without it
    bot = pytest.fixture(_missing, name="bot")
else:
    import pytest_asyncio

    bot = pytest_asyncio.fixture(_bot, name="bot")


@pytest.fixture
def slack(bot: "Bot") -> "Slack":
    """Return the simulated Slack of ``bot``, where people write to it."""
    return bot.slack
