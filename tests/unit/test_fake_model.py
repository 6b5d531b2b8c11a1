"""The simulator's model calls the tools that a question names, and repeats other questions."""

import json
from typing import Any

import aiohttp
import pytest

from surelane_dev.simulator.server import serving_simulator
from surelane_dev.simulator.simulator_settings import FAKE_MODEL_PATH, SimulatorSettings
from surelane_service.service_settings import load_settings

NUMBERED = {"type": "object", "required": ["city", "days"]}
TOOL = {
    "name": "weather_report",
    "parameters": {**NUMBERED, "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}
USER = {"role": "user", "content": [{"type": "text", "text": "<@U1>: Weather report Ulm?"}]}
CALLED = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "weather_report"}}],
}


@pytest.mark.parametrize(
    ("messages", "text", "arguments"),
    [
        ([USER], None, {"city": "Ulm", "days": 1}),
        (
            [USER, CALLED, {"role": "tool", "tool_call_id": "c", "content": "sunny"}],
            "weather_report says: sunny",
            None,
        ),
        ([{"role": "user", "content": "Good  morning"}], "You said: Good morning", None),
        ([{"role": "user", "content": ""}], "You said: nothing", None),
    ],
)
async def test_an_answer(messages: list[dict[str, Any]], text: str | None, arguments: Any) -> None:
    settings = load_settings(SimulatorSettings, host="127.0.0.1", port=0, public_url=None, state=None)
    body = {"model": "fake", "messages": messages, "tools": [{"type": "function", "function": TOOL}]}
    async with (
        serving_simulator(settings) as (url, _),
        aiohttp.ClientSession(url) as client,
        client.post(f"{FAKE_MODEL_PATH}/chat/completions", json=body) as answer,
    ):
        (choice,) = (await answer.json())["choices"]
    assert choice["message"]["content"] == text
    calls = choice["message"].get("tool_calls", [])
    assert [json.loads(call["function"]["arguments"]) for call in calls] == ([arguments] if arguments else [])
