"""Whole turns: over the death of workers, in spans, and in the examples, those of other frameworks, too."""

import asyncio
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from extensions.agents.tests.system.model_server import (
    KEY,
    OURS,
    Desk,
    ModelServer,
    Reply,
    calls,
    model_server,
    says,
    settings,
)
from extensions.agents.tests.system.shared import shared_model
from surelane.calls import Connection
from surelane.trace_context import trace_id_of
from tests.needs import lacking
from tests.otlp import PROTOCOLS, Received, receiving
from tests.processes import until
from tests.sql.migrations import connected
from tests.system.slack_stand import Person, slack_stand
from tests.system.worker import ended, enqueue, worker

model = shared_model
FOLDER = Path(__file__).parents[4] / "examples/agent"
MARKED = "marked-words"
EXAMPLES, STREAMING = "examples.frameworks", "extensions.agents.tests.system.frameworks.streaming_bots"
BOTS = {
    f"{EXAMPLES}.openai_bot:handlers": "agents",
    f"{EXAMPLES}.pydantic_bot:handlers": "pydantic_ai",
    f"{EXAMPLES}.graph_bot:handlers": "langgraph",
    f"{STREAMING}:openai": "agents",
    f"{STREAMING}:pydantic": "agents",
    f"{STREAMING}:graph": "agents",
}


async def stored(connection: Connection, identity: int) -> bool:
    """Return whether the response with the answer is stored."""
    kept = "select 1 from agent.step where event_id = $1 and name = 'model' and result::text like '%Three.%'"
    return bool(await connection.fetchval(kept, identity))


@pytest.mark.parametrize(("method", "tool"), [("chat.startStream", False), ("chat.stopStream", True)])
async def test_a_worker_that_dies_while_slack_is_told_pays_for_no_response_again(
    database: str, model: ModelServer, tmp_path: Path, method: str, tool: bool
) -> None:
    """A response that came whole is stored before anything else."""
    plan = f"{method[5:]}{tool}"
    look = calls(("note", {"log": str(tmp_path / "log"), "text": "noted"}))
    async with connected(database) as connection, slack_stand(connection) as slack:
        desk = Desk(slack, model, connection)
        given = settings(model, slack, **OURS, SURELANE_SESSION_GRACE="200ms")
        slack.fail("slow", method, delay=600)
        async with worker(database, **given) as first:
            identity, asked = await desk.ask(
                plan, *([look] if tool else []), says("One. ", "Two. ", "Three.")
            )
            async with asyncio.timeout(20):
                while not await stored(connection, identity):  # noqa: ASYNC110 - another process stores it
                    await asyncio.sleep(0.05)
            await until(lambda: not slack.simulator.faults.active, what="the call")
            first.child.kill()
            await first.child.wait()
        async with worker(database, **given):
            assert (await ended(connection, identity))["outcome"] == "completed"
        assert len(model.asked[plan]) == (2 if tool else 1)
        assert slack.answers(asked)[-1] == "One. Two. Three."
        assert not any(reply.streaming for reply in slack.replies(asked))


async def test_model_and_tools_are_spans_without_text(database: str) -> None:
    """The spans are below the attempt, by the conventions for generative AI."""
    async with (
        connected(database) as connection,
        model_server() as model,
        receiving(PROTOCOLS[0]) as receiver,
    ):
        model.plans["traced"] = [
            calls(("weather", {"city": MARKED}), ("fail", {"text": MARKED}), text=[MARKED]),
            [Reply(status=503), says(f"Blue. {MARKED}")],
        ]
        given = settings(model, **OURS, **receiver.env)
        async with worker(database, SURELANE_MODEL_INSTRUCTIONS=MARKED, **given):
            identity = await enqueue(connection, "agent-turn", {"text": f"plan:traced {MARKED}"})
            assert (await ended(connection, identity))["outcome"] == "completed"
        key = str(identity)
        await until(lambda: len(_named(receiver.trace(trace_id_of(key)), "chat")) == 3, what="the spans")
        spans = receiver.trace(trace_id_of(key))
    attempts = {span.id for span in _named(spans, "process")}
    first, refused, last = _named(spans, "chat local")
    assert {each.parent for each in (first, refused, last)} <= attempts
    assert first.attributes["gen_ai.request.model"] == "local"
    assert first.attributes["gen_ai.usage.input_tokens"] == 100
    assert refused.attributes.get("gen_ai.usage.input_tokens") is None
    assert {span.name: span.attributes.get("error.type") for span in _named(spans, "execute_tool")} == {
        "execute_tool weather": None,
        "execute_tool fail": "LookupError",
    }
    assert MARKED.encode() not in receiver.exported


def _named(spans: list[Received], start: str) -> list[Received]:
    return [span for span in spans if span.name.startswith(start)]


async def test_agent_finds_a_ticket_restarts_after_approval_and_takes_feedback(
    database: str, connection: Connection
) -> None:
    given = {"SURELANE_HANDLERS": "examples.agent.agent:handlers", "PYTHON": sys.executable}
    async with (
        slack_stand(connection) as slack,
        model_server() as model,
        worker(database, **settings(model, slack, **given)),
    ):
        desk = Desk(slack, model, connection)
        identity, asked = await desk.ask(
            "slow",
            calls(("tickets_search", {"word": "API"}), ("on_call", {"service": "api"})),
            calls(("restart", {"service": "api", "reason": "T1"}), text=["T1 says that it is slow."]),
            says("It was restarted."),
        )
        await until(lambda: len(slack.replies(asked)) == 3, within=60, what="the question")
        question, ada = slack.replies(asked)[-1], Person(slack, "ada")
        await ended(connection, await ada.press(question, 0), within=60)
        row = await ended(connection, identity, within=60)
        assert (row["outcome"], json.loads(row["result"])["answer"]) == ("completed", "It was restarted.")
        assert desk.told("slow") == ['{"T1":"api answers slowly"}', "Ada", "api was restarted: T1"]
        steps, first, _, answer = slack.replies(asked)
        # Ada may answer before the turn is suspended: then it is one attempt, whose stream has the tasks.
        assert (steps.only_tasks, len((steps.blocks or [{"tasks": steps.tasks}])[0]["tasks"])) == (True, 3)
        assert (first.text, answer.text) == ("T1 says that it is slow.", "It was restarted.")

        thumbs = answer.blocks[0]
        click = await ada.click(answer, thumbs["elements"][0], thumbs["block_id"], value="good")
        assert await desk.result(click) == {"rated": "good"}
        rated = "select model from agent.feedback where event_id = $1"
        assert await connection.fetchval(rated, identity) == "local"


def test_example_is_small() -> None:
    assert sum(len(file.read_text().splitlines()) for file in FOLDER.glob("*.*")) <= 150


@pytest.mark.parametrize("bot", BOTS)
async def test_an_agent_of_another_framework_killed_while_its_model_answers_goes_on(
    database: str, connection: Connection, tmp_path: Path, bot: str
) -> None:
    """It is killed at each of its requests, each time in another worker."""
    if importlib.util.find_spec(BOTS[bot]) is None:
        lacking(f"{BOTS[bot]} is not installed: make .venv/frameworks.stamp")
    tickets = tmp_path / "tickets"
    both = calls(("file_ticket", {"title": "api is slow"}), ("file_ticket", {"title": "web is slow"}))
    replies = [both, calls(("file_ticket", {"title": "both"})), says("Fi", "led.")]
    async with slack_stand(connection) as slack, model_server() as model:
        given = {
            "SURELANE_HANDLERS": bot,
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
            async with worker(database, **given) as dying:
                times = 2 * number + 1
                await until(lambda: len(model.asked["slow"]) == times, within=60, what="the request")  # noqa: B023
                dying.child.kill()
                await dying.child.wait()
            never.set()
        model.plans["slow"] = [*replies]
        async with worker(database, **given):
            row = await ended(connection, identity, within=60)
        assert row["outcome"] == "completed"
        assert slack.answers(asked) == ["Filed."]
        assert sorted(tickets.read_text().splitlines()) == ["api is slow", "both", "web is slow"]
        assert len(model.asked["slow"]) == 2 * len(replies)
