"""Agents of other frameworks: a worker that is killed repeats no response that was paid for, and no finished tool."""

import asyncio
import importlib.util
from pathlib import Path

import pytest

from surelane.calls import Connection
from tests.needs import lacking
from tests.processes import until
from tests.system.model_server import KEY, ModelServer, Reply, calls, model_server
from tests.system.slack_stand import slack_stand
from tests.system.worker import ended, worker

EXAMPLES = {"openai_bot": "agents", "pydantic_bot": "pydantic_ai", "graph_bot": "langgraph"}
REQUESTS = 3


@pytest.mark.parametrize("killed_at", range(REQUESTS))
@pytest.mark.parametrize("example", EXAMPLES)
async def test_an_agent_killed_while_its_model_answers_goes_on(
    database: str, connection: Connection, tmp_path: Path, example: str, killed_at: int
) -> None:
    if importlib.util.find_spec(EXAMPLES[example]) is None:
        lacking(f"{EXAMPLES[example]} is not installed: make .venv/frameworks.stamp")
    tickets = tmp_path / "tickets"
    async with slack_stand(connection) as slack, model_server() as model:
        model.plans["slow"] = [
            calls(("file_ticket", {"title": "api is slow"}), ("file_ticket", {"title": "web is slow"})),
            calls(("file_ticket", {"title": "both"})),
            Reply(text=["Filed."]),
        ]
        settings = {
            "SURELANE_HANDLERS": f"examples.frameworks.{example}:handlers",
            "SLACK_API_URL": slack.api,
            "OPENAI_BASE_URL": model.url,
            "OPENAI_API_KEY": KEY,
            "TICKETS": str(tickets),
            "SURELANE_SWEEP_INTERVAL": "1s",
        }
        identity, asked = await slack.mention("plan:slow why is it slow?")
        await killed(database, model, killed_at, settings)
        async with worker(database, **settings):
            row = await ended(connection, identity, within=60)
        assert row["outcome"] == "completed"
        assert slack.answers(asked) == ["Filed."]
        assert sorted(tickets.read_text().splitlines()) == ["api is slow", "both", "web is slow"]
        assert len(model.asked["slow"]) == REQUESTS + 1


async def killed(database: str, model: ModelServer, request: int, settings: dict[str, str]) -> None:
    """Kill a worker while it waits for a response of the model."""
    planned = model.plans["slow"][request]
    assert isinstance(planned, Reply)
    never = asyncio.Event()
    model.plans["slow"][request] = Reply(text=planned.text, calls=planned.calls, pause=never)
    async with worker(database, **settings) as dying:
        await until(lambda: len(model.asked["slow"]) == request + 1, within=60, what="the model is asked")
        dying.child.kill()
        await dying.child.wait()
    model.plans["slow"][request] = planned
    never.set()
