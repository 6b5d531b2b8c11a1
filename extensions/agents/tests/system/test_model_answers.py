"""What people see of an agent's answer, and its search in Slack: tables, tasks, charts, long code, over kills."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from extensions.agents.tests.system.model_server import OURS, Desk, ModelServer, calls, says, settings
from extensions.agents.tests.system.shared import shared_desk, shared_model
from surelane_dev.simulator.workspace.model import Message
from surelane_worker.slack.chunks import table_text
from tests.processes import Service, until
from tests.sql.migrations import connected
from tests.system.shared import shared_connection, shared_slack
from tests.system.slack_stand import Stand, slack_stand
from tests.system.worker import ended, worker

pytestmark = pytest.mark.usefixtures("running")
TABLE = "| who | tickets |\n|:--|--:|\n| **Ada** | 3 |\n| Grace | 4 |\n"
SPLIT = "Here:\n\n" + TABLE + "\nThat is all."
LOOK = calls(("weather", {"city": "Ulm"}))
connection, slack, model, desk = shared_connection, shared_slack, shared_model, shared_desk


def given(slack: Stand, model: ModelServer) -> dict[str, str]:
    """Return the settings of a worker for these tests."""
    return settings(model, slack, LOG_LEVEL="debug", SURELANE_SESSION_GRACE="200ms", **OURS)


@pytest.fixture(scope="module")
async def running(shared_database: str, slack: Stand, model: ModelServer) -> AsyncIterator[Service]:
    async with worker(shared_database, **given(slack, model)) as started:
        yield started


def kinds(message: Message) -> list[str]:
    """Return the types of a message's blocks. The agent's own additions to its answers are left out."""
    return [block["type"] for block in message.blocks if block["type"] != "divider"]


def tasks(message: Message) -> list[tuple[str, str]]:
    """Return the titles and states of the tasks that a message shows."""
    return [(task["title"], task["status"]) for task in message.tasks]


@pytest.mark.parametrize("size", [1, 7, 1000], ids=["by characters", "by parts", "at once"])
async def test_table_is_streamed_as_a_block_in_its_place(desk: Desk, size: int) -> None:
    parts = [SPLIT[at : at + size] for at in range(0, len(SPLIT), size)]
    result, asked = await desk.turn(f"table-{size}", says(*parts))
    assert result["answer"] == SPLIT
    (message,) = desk.slack.replies(asked)
    assert kinds(message) == ["markdown", "table", "markdown"]
    before, table, after, _ = message.blocks
    assert (before["text"], after["text"]) == ("Here:\n\n", "\nThat is all.")
    assert table_text(table) == "who | tickets\nAda | 3\nGrace | 4\n"
    assert table["rows"][1][0]["elements"][0]["elements"] == [
        {"type": "text", "text": "Ada", "style": {"bold": True}}
    ]
    assert table["column_settings"] == [{"align": "left"}, {"align": "right"}]


async def test_answer_that_is_posted_has_the_table_as_a_block_and_its_cells_as_text(desk: Desk) -> None:
    general = desk.slack.room()
    await desk.result(await desk.job("posted", says(SPLIT), kind="guarded", channel=general.id))
    message = list(general.messages.values())[-1]
    assert kinds(message) == ["markdown", "table", "markdown"]
    assert message.text == "Here:\n\nwho | tickets\nAda | 3\nGrace | 4\n\nThat is all."


async def test_tasks_show_what_the_tools_do(desk: Desk, tmp_path: Path) -> None:
    awaited = tmp_path / "there"
    first = calls(("wait_for_file", {"name": str(awaited)}), ("fail", {"text": "no"}), text=["I look."])
    identity, asked = await desk.ask("tasks", first, LOOK, says("Done."))

    def states() -> list[str]:
        return [task["status"] for message in desk.slack.replies(asked) for task in message.tasks]

    await until(lambda: states() == ["in_progress", "error"], what="both tasks")
    awaited.touch()
    await desk.result(identity)
    before, shown, after = desk.slack.replies(asked)
    assert [message.text for message in (before, shown, after)] == ["I look.", "", "Done."]
    assert (shown.plan, shown.streaming) == ("Steps", False)
    assert [task["id"] for task in shown.tasks] == ["1.1", "1.2", "2.1"]
    assert tasks(shown) == [("wait_for_file", "complete"), ("fail", "error"), ("weather", "complete")]


async def test_refused_tasks_do_not_end_the_turn(desk: Desk) -> None:
    result, _ = await desk.turn("refused", calls(("x" * 300, {})), says("Done."))
    assert result["answer"] == "Done."


async def test_search_finds_messages_and_their_permalinks(desk: Desk) -> None:
    simulator, general, grace = desk.slack.simulator, desk.slack.room(), desk.slack.user("grace")
    found = simulator.workspace.post(general, grace.id, "The zeppelin leaves R&amp;D at noon. " + "x" * 2000)
    asks = calls(("search_slack", {"query": "When does the zeppelin leave?"}))
    identity, asked = await desk.ask("search", asks, says("Noon."))
    await desk.result(identity)
    (first, *_) = json.loads(desk.told("search")[-1])
    permalink = f"{simulator.interactions.public_url}/#{general.id}/{found.ts}"
    assert (first["author"], first["permalink"]) == (grace.id, permalink)
    assert (first["text"][:24], len(first["text"])) == ("The zeppelin leaves R&D ", 1000)
    assert tasks(desk.slack.replies(asked)[0]) == [("search_slack", "complete")]
    token = list(simulator.workspace.action_tokens)[-1]
    assert token not in json.dumps(desk.model.asked["search"])
    assert token not in await desk.connection.fetchval("select agent.list_steps($1)", identity)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [("no-old", "Slack answers invalid_action_token"), ("no-job", "it came without a right to search")],
)
async def test_model_is_told_that_slack_cannot_be_searched(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, plan: str, reason: str
) -> None:
    answers = calls(("search_slack", {"query": "zeppelin"})), says("I do not know.")
    if plan == "no-job":
        identity = await desk.job(plan, *answers)
    else:
        workspace, now = desk.slack.simulator.workspace, desk.slack.simulator.workspace.now
        with monkeypatch.context() as patched:
            patched.setattr(workspace, "now", lambda: now() - 3600)
            identity, _ = await desk.ask(plan, *answers)
    assert (await desk.result(identity))["answer"] == "I do not know."
    assert f"Slack cannot be searched for this question: {reason}" in desk.told(plan)[-1]


CHART = {
    "type": "data_visualization",
    "title": "Tickets <!here>",
    "chart": {
        "type": "bar",
        "series": [{"name": "open", "data": [{"label": "Mon", "value": 3}, {"label": "Tue", "value": 4}]}],
        "axis_config": {"categories": ["Mon", "Tue"]},
    },
}
CARD = {
    "type": "card",
    "title": {"type": "mrkdwn", "text": "a < b"},
    "body": {"type": "mrkdwn", "text": "up"},
}


async def test_charts_and_cards_are_shown_with_their_text(desk: Desk) -> None:
    folded = {"type": "container", "title": {"type": "plain_text", "text": "More"}, "is_collapsible": True}
    folded["child_blocks"] = [{"type": "divider"}, {"type": "section", "text": CARD["body"]}]
    blocks = [CHART, CARD, {"type": "carousel", "elements": [CARD, CARD]}, folded]
    shown = calls(("show", {"blocks": blocks, "text": "Mon 3, R&D 4 <!channel>"}))
    _, asked = await desk.turn("show", shown, says("There."))
    (message,) = [each for each in desk.slack.replies(asked) if "data_visualization" in kinds(each)]
    assert kinds(message) == ["data_visualization", "card", "carousel", "container"]
    assert message.text == "Mon 3, R&amp;D 4 &lt;\u200b!channel&gt;"
    assert message.blocks[1]["title"]["text"] == "a &lt; b"
    assert message.blocks[0]["title"] == "Tickets <\u200b!here>"
    assert desk.told("show") == ["shown"]


@pytest.mark.parametrize(
    ("number", "block", "why"),
    [
        (1, {**CHART, "title": "x" * 51}, "invalid_blocks"),
        (2, {"type": "actions", "elements": []}, "only card, carousel, container, data_visualization"),
        (3, {"type": "carousel", "elements": [{**CARD, "actions": []}]}, "without actions"),
        (4, {**CARD, "icon": {"type": "image", "image_url": "https://a.b/secret"}}, "and images"),
    ],
)
async def test_model_is_told_what_slack_does_not_show(desk: Desk, number: int, block: Any, why: str) -> None:
    shows = calls(("show", {"blocks": [block], "text": "x"}))
    result, _ = await desk.turn(f"refused-{number}", shows, says("So in words."))
    assert result["answer"] == "So in words."
    assert why in desk.told(f"refused-{number}")[-1]


async def test_killed_worker_leaves_one_table_one_plan_and_one_chart(
    database: str, model: ModelServer, tmp_path: Path
) -> None:
    """The first worker dies in a tool, with a chart posted and the plan begun; the second one in the table's answer."""
    pause = asyncio.Event()
    async with connected(database) as connection, slack_stand(connection) as slack:
        desk = Desk(slack, model, connection)
        async with worker(database, **given(slack, model)) as first:
            identity, asked = await desk.ask(
                "kills",
                calls(("show", {"blocks": [CHART], "text": "Mon 3, Tue 4"})),
                calls(("note", {"log": str(tmp_path / "log"), "text": "die"})),
                [says(SPLIT, "More", pause=pause), says(SPLIT, "More")],
            )
            await first.child.wait()
            assert first.child.exit_code == -signal.SIGKILL
        async with worker(database, **given(slack, model)) as second:
            await until(
                lambda: any("table" in kinds(each) for each in slack.replies(asked)), what="the table"
            )
            second.child.kill()
            await second.child.wait()
        pause.set()
        async with worker(database, **given(slack, model)):
            assert (await ended(connection, identity))["outcome"] == "completed"
        plan, chart, answer = slack.replies(asked)
        assert kinds(chart) == ["data_visualization"]
        assert [(task["title"], task["status"]) for task in plan.blocks[0]["tasks"]] == [
            ("show", "complete"),
            ("note", "complete"),
        ]
        assert kinds(answer) == ["markdown", "table", "markdown"]
        assert answer.text.endswith("That is all.More")
        assert not any(message.streaming for message in (plan, chart, answer))


@pytest.mark.parametrize(
    "answer", [says("Done."), calls(("deploy", {"service": "api"})), LOOK], ids=["text", "approval", "tool"]
)
async def test_turn_whose_question_was_deleted_is_cancelled_and_leaves_nothing_in_the_channel(
    desk: Desk, answer: Any
) -> None:
    before = list(desk.slack.room().messages)
    identity, _ = await desk.ask("gone", answer, says("Done."), deleted=True)
    row = await ended(desk.connection, identity)
    why = "cancelled while running by surelane: the message that it answers was deleted"
    assert (row["outcome"], row["reason"]) == ("cancelled", why)
    assert list(desk.slack.room().messages) == before


@pytest.mark.parametrize("refused", [False, True], ids=["blocks", "text"])
async def test_answer_that_slack_does_not_take_as_a_stream_is_posted_with_all_of_its_large_table_once(
    desk: Desk, refused: bool
) -> None:
    """Where Slack refuses the blocks, too, the message has the table's rows as text."""
    desk.slack.fail("refused", "chat.startStream", error="channel_type_not_supported", count=None)
    if refused:
        desk.slack.fail("refused", "chat.postMessage", error="invalid_blocks")
    large = f"{TABLE.rstrip()}\n" + "| Rio | 31 |\n" * 21
    try:
        result, asked = await desk.turn(f"plain-{refused}", LOOK, says("Here:\n\n", large, "\nDone."))
    finally:
        desk.slack.simulator.faults.remove()
    (message,) = desk.slack.replies(asked)
    assert kinds(message) == ([] if refused else ["markdown", "data_table", "markdown"])
    assert message.text.count("Rio | 31") == 21
    assert result["answer"].endswith("Done.")
