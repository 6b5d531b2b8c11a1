"""Fixtures for files whose tests share a database, a simulated Slack and a model's server.

A file gives them their usual names: ``connection, slack = shared_connection, shared_slack``.
"""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from surelane.calls import Connection
from tests.system.model_server import Desk, ModelServer, model_server
from tests.system.slack_stand import Stand, slack_stand


@pytest.fixture(scope="module")
async def shared_connection(shared_database: str) -> AsyncIterator[Connection]:
    connected = await asyncpg.connect(shared_database)
    yield connected
    await connected.close()


@pytest.fixture(scope="module")
async def shared_slack(connection: Connection) -> AsyncIterator[Stand]:
    async with slack_stand(connection) as stand:
        yield stand


@pytest.fixture(scope="module")
async def shared_model() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server


@pytest.fixture(scope="module")
async def shared_desk(slack: Stand, model: ModelServer, connection: Connection) -> Desk:
    return Desk(slack, model, connection)
