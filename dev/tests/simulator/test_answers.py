"""The simulated Slack refuses the tables, charts, cards and tasks that Slack refuses, and searches as Slack does."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from slack_sdk.errors import SlackApiError

from dev.tests.simulator.test_strictness import call
from tests.system.slack_app import Pair, simulated

ADA = "U0ADA00001"
CELL = {"type": "raw_text", "text": "x"}
TABLE: dict[str, Any] = {"type": "table", "rows": [[CELL]]}
PIE = {"type": "pie", "segments": [{"label": "a", "value": 1}]}
BARS: dict[str, Any] = {
    "type": "bar",
    "series": [{"name": "a", "data": [{"label": "Mon", "value": 1}]}],
    "axis_config": {"categories": ["Mon"]},
}
WORDS = {"type": "mrkdwn", "text": "x"}
TASK = {"type": "task_card", "task_id": "1", "title": "Look", "status": "complete"}


def chart(chart: object, title: str = "Tickets") -> dict[str, Any]:
    return {"type": "data_visualization", "title": title, "chart": chart}


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with simulated(subscriptions=frozenset({"app_mention", "message.im"})) as running:
        yield running


@pytest.mark.parametrize(
    "block",
    [
        TABLE,
        {"type": "table", "rows": [[CELL] * 20] * 100, "column_settings": [{"align": "right"}, None]},
        chart(PIE),
        chart(BARS),
        {"type": "card", "title": WORDS},
        {"type": "plan", "title": "Steps", "tasks": [TASK]},
        TASK,
    ],
)
async def test_block_is_taken(pair: Pair, block: dict[str, Any]) -> None:
    given = {"channel": "C0GENERAL1", "text": "x", "blocks": json.dumps([block])}
    assert (await call(pair, "chat.postMessage", data=given))["ok"]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "table"},
        {"type": "table", "rows": []},
        {"type": "table", "rows": [[CELL]] * 101},
        {"type": "table", "rows": [[CELL] * 21]},
        {"type": "table", "rows": [[{"type": "raw_text", "text": ""}]]},
        {"type": "table", "rows": [[{"type": "raw_text", "text": "x" * 10_001}]]},
        {"type": "table", "rows": [[1]]},
        {**TABLE, "column_settings": [{"align": "top"}]},
        chart(PIE, "x" * 51),
        chart({"type": "pie", "segments": [{"label": "a", "value": 0}]}),
        chart({"type": "pie", "segments": PIE["segments"] * 7}),  # type: ignore[operator]
        chart({"type": "radar"}),
        chart({**BARS, "axis_config": {"categories": ["Tue"]}}),
        chart({**BARS, "series": BARS["series"] * 2}),
        {"type": "card"},
        {"type": "card", "body": {"type": "mrkdwn", "text": "x" * 201}},
        {"type": "plan", "title": "Steps", "tasks": [{**TASK, "status": "done"}]},
        {**TASK, "sources": [{"type": "url", "url": "https://a.b"}]},
    ],
)
async def test_block_is_refused(pair: Pair, block: dict[str, Any]) -> None:
    given = {"channel": "C0GENERAL1", "text": "x", "blocks": json.dumps([block])}
    assert (await call(pair, "chat.postMessage", data=given))["error"] == "invalid_blocks"


async def test_message_has_one_table(pair: Pair) -> None:
    given = {"channel": "C0GENERAL1", "text": "x", "blocks": json.dumps([TABLE, TABLE])}
    answer = await call(pair, "chat.postMessage", data=given)
    assert answer["error"] == "invalid_attachments"
    assert answer["response_metadata"]["messages"] == ["only_one_table_allowed"]


async def test_streamed_message_has_its_blocks_in_order_and_one_table(pair: Pair) -> None:
    said = await pair.said()
    whom: dict[str, Any] = {"recipient_team_id": "T", "recipient_user_id": ADA}
    shown = [{"type": "blocks", "blocks": [TABLE]}]
    with pytest.raises(SlackApiError, match="invalid_arguments"):
        await pair.web.chat_startStream(
            channel=said["channel"], thread_ts=said["ts"], task_display_mode="list", **whom
        )
    stream = await pair.web.chat_startStream(
        channel=said["channel"],
        thread_ts=said["ts"],
        task_display_mode="plan",
        chunks=[
            {"type": "plan_update", "title": "Steps"},
            {"type": "task_update", "id": "1", "title": "Look", "status": "in_progress"},
            {"type": "markdown_text", "text": "Before"},
            *shown,
        ],
        **whom,
    )
    where = {"channel": said["channel"], "ts": stream["ts"]}
    for wrong, error in (
        (shown, "invalid_attachments"),
        ([{"type": "task_update", "id": "1", "status": "done"}], "invalid_chunks"),
        ([{"type": "task_update", "id": "1", "title": "x" * 257}], "invalid_chunks"),
    ):
        with pytest.raises(SlackApiError, match=error):
            await pair.web.chat_appendStream(**where, chunks=wrong)
    ended = await pair.web.chat_stopStream(
        **where, chunks=[{"type": "markdown_text", "text": "After"}], blocks=[{"type": "divider"}]
    )
    assert [block.get("text", block["type"]) for block in ended["message"]["blocks"]] == [
        "Before",
        "table",
        "After",
        "divider",
    ]
    assert ended["message"]["text"] == "BeforeAfter"


async def test_search_takes_the_token_of_a_persons_message(pair: Pair) -> None:
    said = await pair.control.say("hello", mention=True)
    await pair.settled(said["events"][0]["id"], "delivered")
    event = pair.app.events[-1]["event"]
    found = await pair.web.api_call(
        "assistant.search.context", json={"query": event["text"], "action_token": event["action_token"]}
    )
    (message,) = found["results"]["messages"]
    assert (message["message_ts"], message["channel_id"]) == (event["ts"], event["channel"])
    assert message["permalink"].endswith(f"/#{event['channel']}/{event['ts']}")
    for token in ({}, {"action_token": "1.2.3"}):
        with pytest.raises(SlackApiError, match="invalid_action_token"):
            await pair.web.api_call("assistant.search.context", json={"query": "x", **token})
    with pytest.raises(SlackApiError, match="invalid_arguments"):
        await pair.web.api_call("assistant.search.context", json={})
