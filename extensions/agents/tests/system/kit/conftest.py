"""Give these tests a bot in their process, and a model over HTTP that answers by their plans."""

from collections.abc import AsyncIterator

import pytest
from pydantic_ai.models.openai import OpenAIChatModel

from dev.tests.kit.conftest import surelane_server, surelane_slack
from extensions.agents.tests.system.model_server import ModelServer, model_server
from surelane_agents.agent_settings import agent_settings
from surelane_agents.models.client import NamedModel, model_of
from surelane_dev.testing.agents import agents_use

__all__ = ["surelane_server", "surelane_slack"]


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        with agents_use(model="local", model_url=server.url, model_feedback=False):
            yield server
            # It is cached, so its connections would outlive the test's event loop.
            chat = model_of(agent_settings(), None)
            assert isinstance(chat, NamedModel)
            assert isinstance(chat.wrapped, OpenAIChatModel)
            await chat.wrapped.client.close()
