"""Every documented kind runs in a worker with the built-in handlers."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any

import pytest

from surelane.testing import fleet, virtual
from surelane_dev.testing.fleets.slack import BOT
from surelane_operator.changes import Changes
from surelane_service.intake import Intake
from surelane_worker.builtin import handlers
from surelane_worker.handling.registry import registered_in

KINDS = {
    *("agent-turn", "trigger-fire", "analytics-write", "provider-refresh", "embed-memories"),
    *("orchestrator-plan", "orchestrator-subtask", "orchestrator-synthesize"),
    *("dispatch-execute", "dispatch-synthesize"),
}
ENDED = "select result from agent.event_hist where kind = $1 order by id"


@asynccontextmanager
async def system() -> AsyncIterator[Any]:
    async with fleet(handlers, settings={"SURELANE_TRIGGER_KINDS": "git=analytics-write"}) as f:
        yield f


async def ended(f: Any, kind: str) -> list[Any]:
    """Wait until nothing is left to do; return the results of a kind's events."""

    async def idle() -> bool:
        return not await f.sql("select from agent.event")

    await f.until(idle)
    return [json.loads(row["result"]) for row in await f.sql(ENDED, kind)]


@virtual
async def test_every_documented_kind_has_a_handler_and_the_worker_announces_it() -> None:
    taken = {kind for handler in registered_in(handlers).all() for kind in handler.kinds}
    rules = {"slack.command.rules", "slack.command.memory", "slack.view_submission", "slack.block_actions"}
    assert taken == KINDS | {"slack.app_mention", "slack.message.im"} | rules
    async with system() as f:
        await f.sleep(5)
        (worker,) = await Changes(f.connection).workers()
        assert worker["version"] == metadata.version("surelane-worker")
        assert set(worker["kinds"]) >= KINDS


JOBS: tuple[tuple[str, Any, Any], ...] = (
    ("agent-turn", {"text": "hello", "channel": "slack"}, {"answer": "I received:\n> hello"}),
    ("analytics-write", {"tool": "search", "took": 0.25}, {"tool": "search", "took": 0.25}),
    ("embed-memories", {"memories": [{"text": "x"}]}, {"model": None, "vectors": []}),
    ("dispatch-execute", {"agent": "nobody", "task": 1}, "no remote agent is called 'nobody'"),
    # 30 KB of lines would become 6,000 children of 30 KB each.
    ("orchestrator-plan", {"goal": "word\n" * 6000}, "the plan's subtasks, with the goal in each, have"),
    ("orchestrator-plan", {"goal": "a\n" * 10_001}, "10,001 subtasks"),
    *(("orchestrator-plan", payload, "") for payload in ({}, {"goal": " "}, {"goal": 1})),
    ("orchestrator-plan", {"goal": "x", "subtasks": "none"}, ""),
)


@virtual
async def test_a_job_has_a_result_or_a_reason() -> None:
    async with system() as f:
        for kind, payload, expected in JOBS:
            row = await f.until((await f.enqueue(kind, payload)).ended)
            if isinstance(expected, str):
                assert (row["outcome"], expected in row["reason"]) == ("failed", True), row
            else:
                assert (row["outcome"], row["result"]) == ("completed", expected)


@virtual
async def test_a_turn_is_answered_where_it_was_asked_and_the_provider_says_whose_token_it_is() -> None:
    async with system() as f:
        payload = {"text": "what is new?", "user": "U1", "channel": "C1", "thread_ts": "1.1"}
        answer = (await (await f.enqueue("agent-turn", payload)).result())["answer"]
        (said,) = f.slack.messages
        assert (said["text"], said["channel"], said["thread_ts"]) == (answer, "C1", "1.1")
        assert "> what is new?" in answer
        assert (await (await f.enqueue("provider-refresh", {})).result())["slack"]["user_id"] == BOT


@pytest.mark.parametrize(
    ("trigger", "payload", "goes_on"), [("git", {"pushed": "main"}, True), ("other", ["anything"], False)]
)
@virtual
async def test_a_webhook_goes_on_as_the_kind_that_is_set_for_it(
    trigger: str, payload: Any, goes_on: bool
) -> None:
    async with system() as f:
        await Intake(f.connection).fire_trigger(trigger, "msg_1", json.dumps(payload))
        kind = "analytics-write" if goes_on else None
        assert await ended(f, "trigger-fire") == [{"trigger": trigger, "kind": kind}]
        assert await ended(f, "analytics-write") == [payload] * goes_on


@virtual
async def test_a_goal_is_planned_worked_on_and_put_together() -> None:
    goal = {"goal": "Report", "subtasks": ["north", {"region": "south"}]}
    async with system() as f:
        for plan in (goal, {"goal": "- first\n- second\n"}):  # its lines are the plan
            assert await (await f.enqueue("orchestrator-plan", plan)).result() == {"subtasks": 2}
        first, second = await ended(f, "orchestrator-synthesize")
        assert first == {"goal": "Report", "completed": goal["subtasks"], "failed": []}
        assert second["completed"] == ["first", "second"]
