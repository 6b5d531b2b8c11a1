"""Test the plugin on the session's server, with the handlers of a small bot."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
from anyio.from_thread import start_blocking_portal

from dev.tests.kit import handlers as bots
from surelane_dev.simulator import interactions
from surelane_dev.testing.bolt import in_place_of_slack
from surelane_dev.testing.bot import running_slack
from surelane_dev.testing.database import CLOCK, connected
from surelane_dev.testing.database import PostgresServer as TestServer
from surelane_worker import Handlers
from tests.databases import Server


@pytest.fixture(scope="session")
async def surelane_server(server: Server, template: str) -> AsyncIterator[TestServer]:
    async with server.fresh(template) as name:
        async with connected(server.uri(name)) as owner:
            await owner.execute(CLOCK)
        with start_blocking_portal() as portal:
            yield TestServer(server.admin, name, portal)


@pytest.fixture(scope="module")
def surelane_slack(surelane_server: TestServer) -> Iterator[str]:
    """Do what the plugin's fixture does, for one module: other tests of this process need the usual environment."""
    with surelane_server.portal.wrap_async_context_manager(running_slack()) as api, in_place_of_slack(api):
        yield api


@pytest.fixture
def handlers() -> Handlers:
    bots.calls.clear()
    return bots.handlers


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a trigger be valid for longer than Slack does: a busy machine may take seconds to use it."""
    monkeypatch.setattr(interactions, "TRIGGER_LASTS", timedelta(minutes=5))
