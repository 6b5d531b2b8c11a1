"""Every documented kind runs in a worker with the built-in handlers."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import pytest

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.changes import Changes
from surelane_service.intake import Intake
from surelane_worker.builtin import handlers
from surelane_worker.handling.registry import registered_in
from tests.databases import as_role
from tests.processes import service
from tests.scenario import eventually
from tests.system.shared import shared_connection, shared_slack
from tests.system.slack_stand import Stand
from tests.system.worker import ended

KINDS = {
    *("agent-turn", "trigger-fire", "analytics-write", "provider-refresh", "embed-memories"),
    *("orchestrator-plan", "orchestrator-subtask", "orchestrator-synthesize"),
    *("dispatch-execute", "dispatch-synthesize"),
}


connection, slack = shared_connection, shared_slack


@dataclass(frozen=True)
class System:
    """A running worker, and the queue in front of it."""

    queue: Queue
    connection: Connection

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
async def system(shared_database: str, connection: Connection, slack: Stand) -> AsyncIterator[System]:
    env = {
        "DATABASE_URL": as_role(shared_database, "surelane_worker"),
        "SLACK_API_URL": slack.api,
        "SURELANE_SLACK_LIMITS": "off",
        "SURELANE_TRIGGER_KINDS": "git=analytics-write",
        "SURELANE_WORKER_NAME": "only",
    }
    async with service("surelane_worker", env):
        yield System(Queue(connection), connection)
    assert await connection.fetchval("select count(*) from agent.worker") == 0, "it has retired"


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


async def test_a_turn_is_answered_where_it_was_asked(system: System, slack: Stand) -> None:
    general, ada = slack.room(), slack.user()
    asked = slack.simulator.workspace.post(general, ada.id, "what is new?")
    payload = {"text": asked.text, "user": ada.id, "channel": general.id, "thread_ts": asked.ts}
    outcome, result = await system.outcome("agent-turn", payload)
    assert outcome == "completed"
    assert slack.answers(asked) == [result["answer"]]
    assert "> what is new?" in result["answer"]


@pytest.mark.parametrize(
    ("kind", "payload", "outcome"),
    [
        ("agent-turn", {"text": "hello", "channel": "slack"}, {"answer": "I received:\n> hello"}),
        ("analytics-write", {"tool": "search", "took": 0.25}, {"tool": "search", "took": 0.25}),
        ("embed-memories", {"memories": "none"}, "must be a list"),
        ("embed-memories", {"memories": [1]}, "must be a list"),
        ("dispatch-execute", {"agent": "nobody", "task": 1}, "no remote agent is called 'nobody'"),
        # 30 KB of lines would become 6,000 children of 30 KB each.
        ("orchestrator-plan", {"goal": "word\n" * 6000}, "the plan's subtasks, with the goal in each, have"),
        ("orchestrator-plan", {"goal": "a\n" * 10_001}, "10,001 subtasks"),
        *(("orchestrator-plan", payload, "") for payload in ({}, {"goal": " "}, {"goal": 1})),
        ("orchestrator-plan", {"goal": "x", "subtasks": "none"}, ""),
    ],
)
async def test_a_job_has_a_result_or_a_reason(system: System, kind: str, payload: Any, outcome: Any) -> None:
    ended, found = await system.outcome(kind, payload)
    assert ended == ("failed" if isinstance(outcome, str) else "completed"), found
    assert outcome in found if isinstance(outcome, str) else outcome == found


async def test_the_provider_says_whose_token_it_is(system: System, slack: Stand) -> None:
    outcome, result = await system.outcome("provider-refresh", {})
    assert outcome == "completed"
    assert result["slack"]["user_id"] == slack.simulator.workspace.bot.id


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


async def test_a_webhook_goes_on_as_the_kind_that_is_set_for_it(system: System) -> None:
    fired = await Intake(system.connection).fire_trigger("git", "msg_1", '{"pushed": "main"}')
    assert await system.outcome_of(fired.id) == ("completed", {"trigger": "git", "kind": "analytics-write"})
    assert await system.continuation("analytics-write") == ("completed", {"pushed": "main"})
    fired = await Intake(system.connection).fire_trigger("other", "msg_1", '["anything"]')
    assert await system.outcome_of(fired.id) == ("completed", {"trigger": "other", "kind": None})


async def test_a_goal_is_planned_worked_on_and_put_together(system: System) -> None:
    payload = {"goal": "Report", "subtasks": ["north", {"region": "south"}]}
    assert await system.outcome("orchestrator-plan", payload) == ("completed", {"subtasks": 2})
    outcome, result = await system.continuation("orchestrator-synthesize")
    assert outcome == "completed"
    assert result == {"goal": "Report", "completed": ["north", {"region": "south"}], "failed": []}
    await system.outcome("orchestrator-plan", {"goal": "- first\n- second\n"})  # its lines are the plan
    assert (await system.continuation("orchestrator-synthesize"))[1]["completed"] == ["first", "second"]
