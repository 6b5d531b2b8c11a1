"""What people see of an agent's answer, and its search in Slack: tables, tasks, charts, long code, over kills."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_dev.simulator.workspace.model import Message
from surelane_worker.slack.chunks import open_fence, table_text
from tests.processes import Service, until
from tests.system.model_server import ModelServer, calls, says, settings
from tests.system.shared import shared_connection, shared_model, shared_slack
from tests.system.slack_stand import Stand, slack_stand
from tests.system.test_asks import Person, replies
from tests.system.test_durable import result_of, suspended
from tests.system.worker import ended, enqueue, worker

TABLE = "| who | tickets |\n|:--|--:|\n| **Ada** | 3 |\n| Grace | 4 |\n"
SPLIT = "Here:\n\n" + TABLE + "\nThat is all."
connection, slack, model = shared_connection, shared_slack, shared_model


def given(slack: Stand, model: ModelServer) -> dict[str, str]:
    """Return the settings of a worker for these tests."""
    return settings(
        model,
        SURELANE_HANDLERS="tests.system.model_tools:handlers",
        SURELANE_MODEL_TOOLS="tests.system.model_tools:tools",
        SLACK_API_URL=slack.api,
        SLACK_BOT_TOKEN="xoxb-any",
        LOG_LEVEL="debug",
        SURELANE_SESSION_GRACE="200ms",
    )


@pytest.fixture(scope="module")
async def running(shared_database: str, slack: Stand, model: ModelServer) -> AsyncIterator[Service]:
    async with worker(shared_database, **given(slack, model)) as started:
        yield started


def kinds(message: Message) -> list[str]:
    """Return the types of a message's blocks. The agent's own additions to its answers are left out."""
    return [block["type"] for block in message.blocks if block["type"] != "divider"]


def told(model: ModelServer, plan: str) -> Any:
    """Return what a tool told the model last."""
    return model.asked[plan][-1]["messages"][-1]["content"]


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("size", [1, 7, 1000], ids=["by characters", "by parts", "at once"])
async def test_table_is_streamed_as_a_block_in_its_place(
    slack: Stand, model: ModelServer, connection: Connection, size: int
) -> None:
    parts = [SPLIT[at : at + size] for at in range(0, len(SPLIT), size)]
    model.plans[f"table-{size}"] = [says(*parts)]
    identity, asked = await slack.mention(f"plan:table-{size}")
    assert (await result_of(connection, identity))["answer"] == SPLIT
    (message,) = replies(slack, asked)
    assert kinds(message) == ["markdown", "table", "markdown"]
    before, table, after, _ = message.blocks
    assert (before["text"], after["text"]) == ("Here:\n\n", "\nThat is all.")
    assert table_text(table) == "who | tickets\nAda | 3\nGrace | 4\n"
    assert table["rows"][1][0]["elements"][0]["elements"] == [
        {"type": "text", "text": "Ada", "style": {"bold": True}}
    ]
    assert table["column_settings"] == [{"align": "left"}, {"align": "right"}]


@pytest.mark.usefixtures("running")
async def test_each_further_table_goes_on_in_another_message(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    model.plans["tables"] = [says(SPLIT, "\n\n", SPLIT)]
    identity, asked = await slack.mention("plan:tables")
    await result_of(connection, identity)
    first, second = replies(slack, asked)
    assert (kinds(first), kinds(second)) == (["markdown", "table", "markdown"], ["table", "markdown"])


@pytest.mark.usefixtures("running")
async def test_answer_that_is_posted_has_the_table_as_a_block_and_its_cells_as_text(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    general = slack.simulator.workspace.channel("general")
    assert general is not None
    model.plans["posted"] = [says(SPLIT)]
    identity = await enqueue(connection, "guarded", {"text": "plan:posted", "channel": general.id})
    await result_of(connection, identity)
    message = list(general.messages.values())[-1]
    assert kinds(message) == ["markdown", "table", "markdown"]
    assert message.text == "Here:\n\nwho | tickets\nAda | 3\nGrace | 4\n\nThat is all."


@pytest.mark.usefixtures("running")
async def test_long_code_is_a_code_block_in_each_message(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    lines = [f"print({number})" for number in range(2000)]
    whole = "Look:\n```python\n" + "\n".join(lines) + "\n```\nThat was it."
    model.plans["code"] = [says(*(whole[at : at + 400] for at in range(0, len(whole), 400)))]
    identity, asked = await slack.mention("plan:code")
    await result_of(connection, identity)
    said = [message.text for message in replies(slack, asked)]
    assert len(said) > 2
    assert not any(map(open_fence, said))
    assert [line for line in "".join(said).splitlines() if line.startswith("print(")] == lines


@pytest.mark.usefixtures("running")
async def test_tasks_show_what_the_tools_do(
    slack: Stand, model: ModelServer, connection: Connection, tmp_path: Path
) -> None:
    awaited = tmp_path / "there"
    model.plans["tasks"] = [
        calls(("wait_for_file", {"name": str(awaited)}), ("fail", {"text": "no"}), text=["I look."]),
        calls(("weather", {"city": "Ulm"})),
        says("Done."),
    ]
    identity, asked = await slack.mention("plan:tasks")
    await until(lambda: states(slack, asked) == ["in_progress", "error"], what="both tasks")
    awaited.touch()
    await result_of(connection, identity)
    assert [message.text for message in replies(slack, asked)] == ["I look.", "", "Done."]
    tasks = replies(slack, asked)[1]
    assert (tasks.plan, tasks.streaming) == ("Steps", False)
    assert [(task["id"], task["title"], task["status"]) for task in tasks.tasks] == [
        ("1.1", "wait_for_file", "complete"),
        ("1.2", "fail", "error"),
        ("2.1", "weather", "complete"),
    ]


def states(slack: Stand, asked: Message) -> list[str]:
    return [task["status"] for message in replies(slack, asked) for task in message.tasks]


@pytest.mark.usefixtures("running")
async def test_tasks_go_on_after_an_approval(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    model.plans["later"] = [
        calls(("weather", {"city": "Ulm"})),
        calls(("deploy", {"service": "api"})),
        says("Done."),
    ]
    identity, asked = await slack.mention("plan:later")
    await suspended(connection, identity)
    tasks, question = replies(slack, asked)
    await Person(slack, "grace").press(question, 0)
    await result_of(connection, identity)
    assert [message.text for message in replies(slack, asked)] == ["Steps", question.text, "Done."]
    (plan,) = tasks.blocks
    assert [(task["title"], task["status"]) for task in plan["tasks"]] == [
        ("weather", "complete"),
        ("deploy", "complete"),
    ]
    assert not tasks.streaming


@pytest.mark.usefixtures("running")
async def test_refused_tasks_do_not_end_the_turn(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    title = "x" * 300
    model.plans["refused"] = [calls((title, {})), says("Done.")]
    identity, _ = await slack.mention("plan:refused")
    assert (await result_of(connection, identity))["answer"] == "Done."


@pytest.mark.usefixtures("running")
async def test_search_finds_messages_and_their_permalinks(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    workspace = slack.simulator.workspace
    general, grace = workspace.channel("general"), workspace.user("grace")
    assert general is not None
    assert grace is not None
    found = workspace.post(general, grace.id, "The zeppelin leaves at noon. " + "x" * 2000)
    model.plans["search"] = [
        calls(("search_slack", {"query": "When does the zeppelin leave?"})),
        says("Noon."),
    ]
    identity, asked = await slack.mention("plan:search")
    await result_of(connection, identity)
    (first, *_) = json.loads(told(model, "search"))
    permalink = f"{slack.simulator.interactions.public_url}/#{general.id}/{found.ts}"
    assert (first["author"], first["permalink"]) == (grace.id, permalink)
    assert len(first["text"]) == 1000
    (task,) = replies(slack, asked)[0].tasks
    assert (task["title"], task["status"]) == ("search_slack", "complete")
    token = list(workspace.action_tokens)[-1]
    assert token not in json.dumps(model.asked["search"])
    assert token not in await connection.fetchval("select agent.list_steps($1)", identity)


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("why", ["old", "job"])
async def test_model_is_told_that_slack_cannot_be_searched(
    slack: Stand, model: ModelServer, connection: Connection, why: str
) -> None:
    model.plans[f"no-{why}"] = [calls(("search_slack", {"query": "zeppelin"})), says("I do not know.")]
    if why == "job":
        identity = await enqueue(connection, "agent-turn", {"text": "plan:no-job"})
    else:
        now = slack.simulator.workspace.now
        slack.simulator.workspace.now = lambda: now() - 3600
        try:
            identity, _ = await slack.mention("plan:no-old")
        finally:
            slack.simulator.workspace.now = now
    assert (await result_of(connection, identity))["answer"] == "I do not know."
    reason = {"old": "Slack answers invalid_action_token", "job": "it came without a right to search"}[why]
    assert f"Slack cannot be searched for this question: {reason}" in told(model, f"no-{why}")


CHART = {
    "type": "data_visualization",
    "title": "Tickets <!here>",
    "chart": {
        "type": "bar",
        "series": [{"name": "open", "data": [{"label": "Mon", "value": 3}, {"label": "Tue", "value": 4}]}],
        "axis_config": {"categories": ["Mon", "Tue"]},
    },
}
CARD = {"type": "card", "title": {"type": "mrkdwn", "text": "api"}, "body": {"type": "mrkdwn", "text": "up"}}


@pytest.mark.usefixtures("running")
async def test_charts_and_cards_are_shown_with_their_text(
    slack: Stand, model: ModelServer, connection: Connection
) -> None:
    shown = {"blocks": [CHART, CARD], "text": "Mon 3, Tue 4 <!channel>"}
    model.plans["show"] = [calls(("show", shown)), says("There.")]
    identity, asked = await slack.mention("plan:show")
    await result_of(connection, identity)
    (message,) = [each for each in replies(slack, asked) if "data_visualization" in kinds(each)]
    assert kinds(message) == ["data_visualization", "card"]
    assert message.text == "Mon 3, Tue 4 <\u200b!channel>"
    assert message.blocks[0]["title"] == "Tickets <\u200b!here>"
    assert told(model, "show") == "shown"


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(
    ("number", "block", "why"),
    [
        (1, {**CHART, "title": "x" * 51}, "invalid_blocks"),
        (2, {"type": "actions", "elements": []}, "only card and data_visualization can be shown"),
        (3, {**CARD, "actions": []}, "without actions"),
    ],
)
async def test_model_is_told_what_slack_does_not_show(
    slack: Stand, model: ModelServer, connection: Connection, number: int, block: Any, why: str
) -> None:
    plan = f"refused-{number}"
    model.plans[plan] = [calls(("show", {"blocks": [block], "text": "x"})), says("So in words.")]
    identity, _ = await slack.mention(f"plan:{plan}")
    assert (await result_of(connection, identity))["answer"] == "So in words."
    assert why in told(model, plan)


async def test_killed_worker_leaves_one_table_one_plan_and_one_chart(
    database: str, model: ModelServer, tmp_path: Path
) -> None:
    """The first worker dies in a tool, with a chart posted and the plan begun; the second one in the table's answer."""
    connection = await asyncpg.connect(database)
    dies = {"log": str(tmp_path / "log"), "text": "die"}
    pause = asyncio.Event()
    model.plans["kills"] = [
        calls(("show", {"blocks": [CHART], "text": "Mon 3, Tue 4"})),
        calls(("note", dies)),
        [says(SPLIT, "More", pause=pause), says(SPLIT, "More")],
    ]
    async with slack_stand(connection) as slack:
        async with worker(database, **given(slack, model)) as first:
            identity, asked = await slack.mention("plan:kills")
            await first.child.wait()
            assert first.child.exit_code == -signal.SIGKILL
        async with worker(database, **given(slack, model)) as second:
            await until(
                lambda: any("table" in kinds(each) for each in replies(slack, asked)), what="the table"
            )
            os.kill(second.process.pid, signal.SIGKILL)
            await until(lambda: second.child.exit_code is not None, what="the second worker's death")
        pause.set()
        async with worker(database, **given(slack, model)):
            assert (await ended(connection, identity))["outcome"] == "completed"
        plan, chart, answer = replies(slack, asked)
        assert kinds(chart) == ["data_visualization"]
        assert [(task["title"], task["status"]) for task in plan.blocks[0]["tasks"]] == [
            ("show", "complete"),
            ("note", "complete"),
        ]
        assert kinds(answer) == ["markdown", "table", "markdown"]
        assert answer.text.endswith("That is all.More")
        assert not any(message.streaming for message in (plan, chart, answer))
    await connection.close()
