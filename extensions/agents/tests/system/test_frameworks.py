"""Agents of other frameworks: a worker that is killed repeats no response that was paid for, and no finished tool."""

import asyncio
import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from extensions.agents.tests.system.model_server import KEY, calls, model_server, says
from surelane.calls import Connection
from tests.needs import lacking
from tests.processes import until
from tests.system.slack_stand import slack_stand
from tests.system.worker import ended, worker

EXAMPLES = {"openai_bot": "agents", "pydantic_bot": "pydantic_ai", "graph_bot": "langgraph"}


@pytest.mark.parametrize("example", EXAMPLES)
async def test_an_agent_killed_while_its_model_answers_goes_on(
    database: str, connection: Connection, tmp_path: Path, example: str
) -> None:
    """It is killed at each of its requests, each time in another worker."""
    if importlib.util.find_spec(EXAMPLES[example]) is None:
        lacking(f"{EXAMPLES[example]} is not installed: make .venv/frameworks.stamp")
    tickets = tmp_path / "tickets"
    both = calls(("file_ticket", {"title": "api is slow"}), ("file_ticket", {"title": "web is slow"}))
    replies = [both, calls(("file_ticket", {"title": "both"})), says("Filed.")]
    async with slack_stand(connection) as slack, model_server() as model:
        settings = {
            "SURELANE_HANDLERS": f"examples.frameworks.{example}:handlers",
            "SLACK_API_URL": slack.api,
            "OPENAI_BASE_URL": model.url,
            "OPENAI_API_KEY": KEY,
            "TICKETS": str(tickets),
            "SURELANE_SWEEP_INTERVAL": "1s",
        }
        identity, asked = await slack.mention("plan:slow why is it slow?")
        for number, reply in enumerate(replies):
            never = asyncio.Event()
            model.plans["slow"] = [*replies[:number], replace(reply, pause=never)]
            async with worker(database, **settings) as dying:
                times = 2 * number + 1
                await until(lambda: len(model.asked["slow"]) == times, within=60, what="the request")  # noqa: B023
                dying.child.kill()
                await dying.child.wait()
            never.set()
        model.plans["slow"] = [*replies]
        async with worker(database, **settings):
            row = await ended(connection, identity, within=60)
        assert row["outcome"] == "completed"
        assert slack.answers(asked) == ["Filed."]
        assert sorted(tickets.read_text().splitlines()) == ["api is slow", "both", "web is slow"]
        assert len(model.asked["slow"]) == 2 * len(replies)
