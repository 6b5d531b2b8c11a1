"""Every documented kind runs in a worker with the built-in handlers."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.changes import Changes
from surelane_service.intake import Intake
from surelane_worker.builtin import handlers
from surelane_worker.handling.registry import registered_in
from tests.databases import Server, as_role
from tests.processes import Service, service
from tests.scenario import eventually
from tests.system.slack_stand import Stand, slack_stand
from tests.system.worker import ended

KINDS = {
    *("agent-turn", "trigger-fire", "analytics-write", "provider-refresh", "embed-memories"),
    *("orchestrator-plan", "orchestrator-subtask", "orchestrator-synthesize"),
    *("dispatch-execute", "dispatch-synthesize"),
}


@dataclass(frozen=True)
class System:
    """A running worker, the Slack it answers in, and the queue between them."""

    queue: Queue
    connection: Connection
    slack: Stand
    worker: Service

    async def outcome(self, kind: str, payload: Any) -> tuple[str, Any]:
        """Enqueue a job. Return its outcome, and its result or the reason, once it has ended."""
        return await self.outcome_of(await self.queue.enqueue(kind, payload))

    async def outcome_of(self, identity: int) -> tuple[str, Any]:
        """Return the outcome of an event, and its result or the reason."""
        row = await ended(self.connection, identity)
        done = row["outcome"] == "completed"
        return row["outcome"], json.loads(row["result"] or "null") if done else row["reason"]

    async def continuation(self, kind: str) -> tuple[str, Any]:
        """Return how the only event of a kind ended."""
        return await self.outcome_of(
            await self.connection.fetchval("select max(id) from agent.job where kind = $1", kind)
        )


@pytest.fixture(scope="module")
async def system(server: Server, template: str) -> AsyncIterator[System]:
    async with server.fresh(template) as name:
        connection = await asyncpg.connect(server.uri(name))
        async with slack_stand(connection) as slack:
            env = {
                "DATABASE_URL": as_role(server.uri(name), "surelane_worker"),
                "SLACK_API_URL": slack.api,
                "SURELANE_BACKOFF_BASE": "50ms",
                "SURELANE_SLACK_LIMITS": "off",
                "SURELANE_TRIGGER_KINDS": "git=analytics-write",
                "SURELANE_WORKER_NAME": "only",
            }
            async with service("surelane_worker", env) as running:
                yield System(Queue(connection), connection, slack, running)
        assert await connection.fetchval("select count(*) from agent.worker") == 0, "it has retired"
        await connection.close()


def test_every_documented_kind_has_a_handler() -> None:
    taken = {kind for handler in registered_in(handlers).all() for kind in handler.kinds}
    rules = {"slack.command.rules", "slack.view_submission", "slack.block_actions"}
    assert taken == KINDS | {"slack.app_mention", "slack.message.im"} | rules


async def test_the_worker_announces_what_it_handles(system: System) -> None:
    async def announced() -> int:
        return len([each for each in await Changes(system.connection).workers() if each["kinds"]])

    await eventually(announced, 1, within=30, every=0.05)  # it works before it says so
    (worker,) = await Changes(system.connection).workers()
    assert (worker["name"], worker["version"]) == ("only", metadata.version("surelane-worker"))
    assert set(worker["kinds"]) >= KINDS


async def test_a_turn_is_answered_where_it_was_asked(system: System) -> None:
    workspace = system.slack.simulator.workspace
    general, ada = workspace.channel("general"), workspace.user("ada")
    assert general is not None
    assert ada is not None
    asked = workspace.post(general, ada.id, "what is new?")
    payload = {"text": asked.text, "user": ada.id, "channel": general.id, "thread_ts": asked.ts}

    outcome, result = await system.outcome("agent-turn", payload)

    assert outcome == "completed"
    assert system.slack.answers(asked) == [result["answer"]]
    assert "> what is new?" in result["answer"]


async def test_a_turn_from_elsewhere_has_its_answer_as_its_result(system: System) -> None:
    payload = {"userId": 1, "sessionId": 2, "text": "hello", "channel": "slack"}
    assert await system.outcome("agent-turn", payload) == ("completed", {"answer": "I received:\n> hello"})


async def test_what_tools_report_is_kept(system: System) -> None:
    report = {"tool": "search", "took": 0.25}
    assert await system.outcome("analytics-write", report) == ("completed", report)


async def test_the_provider_says_whose_token_it_is(system: System) -> None:
    outcome, result = await system.outcome("provider-refresh", {})
    assert outcome == "completed"
    assert result["slack"]["user_id"] == system.slack.simulator.workspace.bot.id


async def test_memories_that_share_words_are_alike(system: System) -> None:
    texts = ["the cat sat on the mat", "the cat lay on the mat", "quarterly revenue grew"]
    memories = [{"id": number, "text": text} for number, text in enumerate(texts)]
    outcome, result = await system.outcome("embed-memories", {"memories": memories})
    vectors = [found["vector"] for found in result["vectors"]]

    def cosine(one: dict[str, float], other: dict[str, float]) -> float:
        return sum(value * other.get(dimension, 0.0) for dimension, value in one.items())

    assert outcome == "completed"
    assert [found["id"] for found in result["vectors"]] == [0, 1, 2]
    assert abs(cosine(vectors[0], vectors[0]) - 1) < 1e-3
    assert cosine(vectors[0], vectors[1]) > 0.6 > 0.3 > cosine(vectors[0], vectors[2])


@pytest.mark.parametrize("payload", [{"memories": "none"}, {"memories": [1]}])
async def test_memories_that_are_none_are_refused(system: System, payload: Any) -> None:
    outcome, reason = await system.outcome("embed-memories", payload)
    assert (outcome, "must be a list" in reason) == ("failed", True)


async def test_a_webhook_goes_on_as_the_kind_that_is_set_for_it(system: System) -> None:
    fired = await Intake(system.connection).fire_trigger("git", "msg_1", '{"pushed": "main"}')
    assert await system.outcome_of(fired.id) == ("completed", {"trigger": "git", "kind": "analytics-write"})
    assert await system.continuation("analytics-write") == ("completed", {"pushed": "main"})


async def test_a_webhook_that_no_kind_is_set_for_is_recorded(system: System) -> None:
    fired = await Intake(system.connection).fire_trigger("other", "msg_1", '["anything"]')
    assert await system.outcome_of(fired.id) == ("completed", {"trigger": "other", "kind": None})


async def test_a_goal_is_planned_worked_on_and_put_together(system: System) -> None:
    payload = {"goal": "Report", "subtasks": ["north", {"region": "south"}]}
    assert await system.outcome("orchestrator-plan", payload) == ("completed", {"subtasks": 2})
    outcome, result = await system.continuation("orchestrator-synthesize")
    assert outcome == "completed"
    assert result == {"goal": "Report", "completed": ["north", {"region": "south"}], "failed": []}


async def test_without_subtasks_the_lines_of_a_goal_are_the_plan(system: System) -> None:
    await system.outcome("orchestrator-plan", {"goal": "- first\n- second\n"})
    assert (await system.continuation("orchestrator-synthesize"))[1]["completed"] == ["first", "second"]


@pytest.mark.parametrize(
    ("goal", "reason"),
    [
        ("word\n" * 6000, "the plan's subtasks, with the goal in each, have"),
        ("a\n" * 10_001, "10,001 subtasks"),
    ],
)
async def test_a_plan_does_not_multiply_its_goal_without_bound(
    system: System, goal: str, reason: str
) -> None:
    """30 KB of lines would become 6,000 children of 30 KB each."""
    outcome, said = await system.outcome("orchestrator-plan", {"goal": goal})
    assert (outcome, reason in said) == ("failed", True), said


@pytest.mark.parametrize("payload", [{}, {"goal": " "}, {"goal": 1}, {"goal": "x", "subtasks": "none"}])
async def test_a_plan_that_makes_no_sense_is_refused(system: System, payload: Any) -> None:
    assert (await system.outcome("orchestrator-plan", payload))[0] == "failed"


async def test_a_dispatch_to_an_unknown_agent_is_refused_at_once(system: System) -> None:
    outcome, reason = await system.outcome("dispatch-execute", {"agent": "nobody", "task": 1})
    assert (outcome, reason) == ("failed", "no remote agent is called 'nobody'")
