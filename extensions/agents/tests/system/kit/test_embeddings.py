"""``embed-memories`` asks the provider's model of embeddings: each request once, stored, and counted."""

from typing import Any

import pytest

from extensions.agents.tests.system.model_server import KEY, ModelServer, Reply
from surelane.errors import SettingsError
from surelane.testing import Bot
from surelane_agents.agent_settings import AgentSettings
from surelane_agents.models.embeddings import AT_ONCE, embed, embedding_model
from surelane_dev.testing.agents import agents_use
from surelane_dev.testing.database import connected
from surelane_service.service_settings import load_settings
from surelane_worker import Handlers

TEXTS = ["word " * number for number in range(1, AT_ONCE + 2)]
MANY = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]


@pytest.fixture
def handlers() -> Handlers:
    handlers = Handlers()
    handlers.on("embed-memories")(embed)
    return handlers


async def embedded(bot: Bot, memories: Any, **more: Any) -> Any:
    identity = await bot.queue.enqueue("embed-memories", {"memories": memories, **more})
    await bot.idle()
    return next(each for each in bot.events if each.id == identity)


async def test_each_request_for_vectors_is_stored_and_counted_once(bot: Bot, model: ModelServer) -> None:
    used = agents_use(model="local", model_url=model.url, model_embeddings="vectors")
    with used, bot.killed_at("step embed"):
        done = await embedded(bot, MANY, team_id="T1", user="U1")
        assert done.result["model"] == "vectors"
        found = [(each["id"], each["vector"]) for each in done.result["vectors"]]
        assert found == [(number, [float(len(text)), 0.5]) for number, text in enumerate(TEXTS)]
        assert [len(asked["input"]) for asked in model.asked["embeddings"]] == [AT_ONCE, 1]
    async with connected(bot.database_url) as connection:
        row = await connection.fetchrow("select * from agent.read_usage('T1', 'U1')")
    assert row is not None
    assert row[0] == sum(map(len, TEXTS))


async def test_what_a_provider_refuses_fails_the_job_with_its_reason(
    bot: Bot, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", model.url)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with agents_use(model="local", model_url=model.url, model_embeddings="openai:vectors"):
        model.plans["embeddings"] = [Reply(status=400)]
        refused = await embedded(bot, [{"text": "no id"}])
        assert refused.state == "failed"
        assert "answers 400" in str(refused)
        assert (await embedded(bot, [])).result == {"model": "openai:vectors", "vectors": []}
        assert (await embedded(bot, "none")).detail == "invalid_payload"


def test_a_model_of_vectors_that_cannot_be_made_is_named() -> None:
    for name in ("no-provider", "unknown:vectors"):
        with pytest.raises(SettingsError, match=name):
            embedding_model(load_settings(AgentSettings, model_embeddings=name))
