"""What a response costs: by the team's file, else by genai-prices, and what a provider's cache had at its own price."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage

from extensions.agents.tests.unit.test_model import GIVEN, check
from surelane_agents import Agent
from surelane_agents.agent import AGENTS
from surelane_agents.models.budget import budget_of

OURS = {"input": 2, "output": 10}
USED = {"input_tokens": 1_000_000, "cache_read_tokens": 400_000, "cache_write_tokens": 100_000}


@pytest.mark.parametrize(
    ("file", "model", "usage", "cost"),
    [
        (None, "gpt-5", {"input_tokens": 1_000_000, "output_tokens": 1_000_000}, "11.25"),
        (None, "gpt-5", {"input_tokens": 1_000_000, "cache_read_tokens": 400_000}, "0.8"),
        (None, "llama-at-home", USED, None),
        (None, None, USED, None),
        ({"catalog": False}, "gpt-5", USED, None),
        ({"prices": {"m": OURS}}, "gpt-5", {"output_tokens": 1_000_000}, "10"),
        ({"prices": {"m": OURS}}, "gpt-5", USED, "2"),
        ({"prices": {"m": OURS | {"cached": 0.5}}}, "gpt-5", USED, "1.4"),
        ({"prices": {"m": OURS | {"cached": 0.5, "cache_write": 3}}}, "gpt-5", USED, "1.5"),
        ({"prices": {"m": {"input": 0, "output": 0}}}, "gpt-5", USED, "0"),
        ({"prices": {"other": OURS}}, "gpt-5", {"input_tokens": 1_000_000}, "1.25"),
    ],
)
def test_response_costs_what_the_file_or_the_catalog_says(
    tmp_path: Path, file: Any, model: str | None, usage: dict[str, Any], cost: str | None
) -> None:
    path = tmp_path / "budget.json"
    path.write_text(json.dumps(file or {}))
    response = ModelResponse(parts=[], usage=RequestUsage(**usage), model_name=model, provider_name="openai")
    assert budget_of(path).cost("m", response) == (None if cost is None else Decimal(cost))


def test_limit_of_money_needs_no_price_for_a_model_of_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
    path = tmp_path / "budget.json"
    path.write_text('{"person": {"money": 1}}')
    agent = Agent(model="openai:gpt-5,openai-chat:gpt-5-mini")
    AGENTS.remove(agent)
    check(agent, **GIVEN, SURELANE_MODEL_BUDGET=str(path))
