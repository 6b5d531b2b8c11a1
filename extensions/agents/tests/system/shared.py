"""Fixtures for files whose tests share a model's server, beside those of :mod:`tests.system.shared`."""

from collections.abc import AsyncIterator

import pytest

from extensions.agents.tests.system.model_server import Desk, ModelServer, model_server
from surelane.calls import Connection
from tests.system.slack_stand import Stand


@pytest.fixture(scope="module")
async def shared_model() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server


@pytest.fixture(scope="module")
async def shared_desk(slack: Stand, model: ModelServer, connection: Connection) -> Desk:
    return Desk(slack, model, connection)
