"""Make the vectors of ``embed-memories``, by the model of ``SURELANE_MODEL_EMBEDDINGS``."""

import asyncio
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, JsonValue, SecretStr
from pydantic_ai import Embedder
from pydantic_ai.embeddings import EmbeddingModel, infer_embedding_model
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel

from surelane.slack import place_of
from surelane_agents.agent_settings import AgentSettings, agent_settings
from surelane_agents.calls import stored
from surelane_agents.errors import ModelRefusedError
from surelane_agents.models.budget import budget_of
from surelane_agents.models.client import at_server, names_provider, running_loop, understood, usable
from surelane_agents.models.metrics import count
from surelane_worker import Context, Discard, Event

AT_ONCE = 100
"""Texts of one request, which is one step: its vectors take about 3 of the 16 MB that a step may store."""


class Memory(BaseModel):
    """A text, and what its vector is known by."""

    id: JsonValue = None
    text: str


class Memories(BaseModel):
    """The payload of ``embed-memories``."""

    memories: list[Memory] = []


def embedding_model(settings: AgentSettings) -> EmbeddingModel:
    """Return the model that makes vectors: the same for all jobs of an event loop.

    Raises:
        SettingsError: it cannot be used.
    """
    name = settings.model_embeddings or ""
    return _made(name, settings.model_url, settings.model_key, running_loop())


@lru_cache(maxsize=8)
def _made(
    name: str, url: str | None, key: SecretStr | None, _: asyncio.AbstractEventLoop | None
) -> EmbeddingModel:
    with usable(name):
        if url is not None and not names_provider(name):
            return OpenAIEmbeddingModel(name, provider=at_server(url, key))
        return infer_embedding_model(name)


async def embed(event: Event, ctx: Context, given: Memories) -> dict[str, Any] | Discard:
    """Return a vector for each memory. Each request is a step, and is counted as a response of an agent's model is."""
    settings, vectors = agent_settings(), list[list[float]]()
    name, embedder = settings.model_embeddings or "", Embedder(embedding_model(settings))

    async def ask(texts: list[str]) -> list[list[float]]:
        with understood():
            async with asyncio.timeout(settings.model_timeout.total_seconds()):
                found = await embedder.embed_documents(texts)
        used, _ = budget_of(settings.model_budget).used(name, found)
        await count(ctx, place_of(event.payload), used)
        return [list(each) for each in found.embeddings]

    try:
        for start in range(0, len(given.memories), AT_ONCE):
            texts = [each.text for each in given.memories[start : start + AT_ONCE]]
            vectors += await stored(ctx, "embed", ask, texts)
    except ModelRefusedError as error:
        return Discard(str(error))
    both = zip(given.memories, vectors, strict=True)
    return {"model": name, "vectors": [{"id": each.id, "vector": vector} for each, vector in both]}
