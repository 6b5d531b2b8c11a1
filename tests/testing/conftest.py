"""Test the plugin on the session's server, with the handlers of a small bot."""

from collections.abc import Iterator

import pytest

from surelane_dev.testing.database import Server as TestServer
from surelane_dev.testing.database import running_server
from surelane_worker import Handlers
from tests.databases import Server
from tests.testing import handlers as bots


@pytest.fixture(scope="session")
def surelane_server(server: Server) -> Iterator[TestServer]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SURELANE_TEST_DATABASE_URL", server.admin)
        with running_server() as running:
            yield running


@pytest.fixture
def handlers() -> Handlers:
    bots.calls.clear()
    return bots.handlers
