"""Fixtures for files whose tests share a database and a simulated Slack.

A file gives them their usual names: ``connection, slack = shared_connection, shared_slack``.
"""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from surelane.calls import Connection
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
