"""The simulated Web API refuses what Slack refuses, in Slack's words, with every client."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dev.tests.simulator.calls import ADA, BEARER, GENERAL, call, failing, plain, refused
from tests.system.slack_app import Pair, simulated

JSON_TYPE = {"Content-Type": "application/json; charset=utf-8"}
DIVIDER = {"type": "divider"}
EMPTY = {"type": "section", "text": {"type": "mrkdwn", "text": ""}}
TABLE = {"type": "table", "rows": [[{"type": "raw_text", "text": "x"}]]}


@pytest.fixture(scope="module")
async def pair() -> AsyncIterator[Pair]:
    async with simulated() as running:
        yield running


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"headers": {}}, "not_authed"),
        ({"headers": {"Authorization": "Bearer nonsense"}}, "invalid_auth"),
        ({"headers": {"Authorization": "xoxb-any"}}, None),
        ({"headers": {"Authorization": "Bearer xoxp-1"}}, "not_allowed_token_type"),
        ({"headers": {"Authorization": "Bearer xapp-1"}}, "not_allowed_token_type"),
        ({"headers": {"Authorization": "Bearer xwfp-1"}}, "invalid_auth"),
        ({"headers": BEARER}, None),
        ({"headers": {}, "data": {"token": "xoxb-any"}}, None),
        ({"headers": {}, "params": {"token": "xoxb-any"}}, "not_authed"),
        ({"headers": {}, "json": {"token": "xoxb-any"}}, "not_authed"),
    ],
)
async def test_tokens(pair: Pair, request_: dict[str, Any], error: str | None) -> None:
    assert (await call(pair, "auth.test", **request_)).get("error") == error


async def test_every_missing_argument_is_named_and_a_method_that_slack_does_not_have(pair: Pair) -> None:
    given: dict[str, Any]
    for given in ({}, {"json": {"channel": GENERAL}}):
        answer = await call(pair, "conversations.replies", **given)
        assert answer["error"] == "invalid_arguments"
        messages = answer["response_metadata"]["messages"]
        assert messages == [f"[ERROR] missing required field: {name}" for name in ("channel", "ts")]
    unknown = {"ok": False, "error": "unknown_method", "req_method": "chat.shout"}
    assert await call(pair, "chat.shout") == unknown


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "no_text"),
        ({"channel": "", "text": "x"}, "channel_not_found"),
        ({"text": "x" * 40_001}, "msg_too_long"),
        ({"blocks": "[not json"}, "invalid_blocks_format"),
        ({"blocks": '[{"text": "no type"}]'}, "invalid_blocks_format"),
        ({"blocks": "[]"}, "no_text"),
        ({"text": "x", "metadata": "{"}, "invalid_metadata_format"),
        ({"text": "x", "metadata": "{}"}, "invalid_metadata_schema"),
        ({"text": "x", "thread_ts": "1.1"}, None),  # it is posted to the channel
        ({"text": "x", "markdown_text": "x"}, "markdown_text_conflict"),
        ({"channel": "lounge", "text": "x"}, "not_in_channel"),
    ],
)
async def test_messages(pair: Pair, arguments: dict[str, str], error: str) -> None:
    answer = await call(pair, "chat.postMessage", data={"channel": "general"} | arguments)
    assert answer.get("error") == error


@pytest.mark.parametrize(
    ("method", "arguments", "error"),
    [
        ("chat.startStream", {"channel": "general", "thread_ts": "soon"}, "invalid_thread_ts"),
        ("chat.startStream", {"channel": "general", "thread_ts": "1.1"}, "invalid_thread_ts"),
        ("conversations.replies", {"channel": "general", "ts": "1.1"}, "thread_not_found"),
        ("conversations.history", {"channel": "general", "limit": "1001"}, "invalid_limit"),
        ("conversations.history", {"channel": "general", "cursor": "???"}, "invalid_cursor"),
        ("conversations.history", {"channel": "general", "oldest": "then"}, "invalid_ts_oldest"),
        ("conversations.list", {"types": "secret"}, "invalid_types"),
        ("conversations.open", {}, "users_list_not_supplied"),
        ("reactions.add", {"channel": "general", "timestamp": "", "name": "x"}, "no_item_specified"),
        ("reactions.add", {"channel": "general", "timestamp": "now", "name": "x"}, "bad_timestamp"),
        (
            "assistant.threads.setStatus",
            {"channel_id": "general", "thread_ts": "1.1", "status": "x"},
            "invalid_thread_ts",
        ),
        ("views.open", {"trigger_id": "x", "view": "[]"}, "invalid_arguments"),
    ],
)
async def test_arguments(pair: Pair, method: str, arguments: dict[str, str], error: str) -> None:
    assert (await call(pair, method, data=arguments)).get("error") == error


@pytest.mark.parametrize(
    ("body", "content_type", "error"),
    [
        (b"{", "application/json; charset=utf-8", "invalid_json"),
        (b"[]", "application/json; charset=utf-8", "json_not_object"),
        (b"text=x", "text/plain", "invalid_post_type"),
    ],
)
async def test_bodies(pair: Pair, body: bytes, content_type: str, error: str) -> None:
    headers = BEARER | {"Content-Type": content_type}
    assert (await call(pair, "chat.postMessage", headers=headers, data=body))["error"] == error


async def test_form_and_json_say_the_same_and_json_without_a_charset_gets_a_warning(pair: Pair) -> None:
    blocks = [{"type": "divider", "block_id": "line"}]
    given = {"channel": GENERAL, "text": "x", "blocks": blocks}
    form = await call(pair, "chat.postMessage", data=given | {"blocks": json.dumps(blocks)})
    posted = await call(pair, "chat.postMessage", data=json.dumps(given), headers=BEARER | JSON_TYPE)
    assert form["message"]["blocks"] == posted["message"]["blocks"] == blocks
    assert "warning" not in posted
    warned = await call(pair, "chat.postMessage", json=given)
    assert (warned["ok"], warned["warning"]) == (True, "missing_charset")
    assert warned["response_metadata"]["warnings"] == ["missing_charset"]
    told = await call(pair, "api.test", headers={}, data={"foo": "bar"})
    assert told == {"ok": True, "args": {"foo": "bar"}}
    assert (await call(pair, "api.test", headers={}, data={"error": "my_error"}))["error"] == "my_error"


async def test_a_call_needs_its_scope() -> None:
    async with simulated(scopes=frozenset({"chat:write", "channels:history"})) as pair:
        assert (await call(pair, "chat.postMessage", data={"channel": "general", "text": "x"}))["ok"]
        answer = await call(pair, "users.list")
        assert (answer["error"], answer["needed"]) == ("missing_scope", "users:read")
        assert answer["provided"] == "channels:history,chat:write"


async def test_each_way_to_show_blocks_checks_them_and_gives_ids_to_those_without(pair: Pair) -> None:
    ts = (await pair.web.chat_postMessage(channel=GENERAL, text="x"))["ts"]
    problem = "must be more than 0 characters [json-pointer:/blocks/0/text/text]"
    for showing in (
        pair.web.chat_postMessage(channel=GENERAL, text="x", blocks=[EMPTY]),
        pair.web.chat_update(channel=GENERAL, ts=ts, text="x", blocks=[EMPTY]),
        pair.web.chat_postEphemeral(channel=GENERAL, user=ADA, text="x", blocks=[EMPTY]),
    ):
        answer = await refused(showing)
        assert (answer["error"], answer["errors"]) == ("invalid_blocks", [problem])
        assert answer["response_metadata"]["messages"] == [f"[ERROR] {problem}"]
    answer = await refused(pair.web.views_open(trigger_id="x", view={"type": "modal", "blocks": []}))
    assert answer["error"] == "invalid_arguments"
    lacks = "[ERROR] missing required field: title [json-pointer:/view]"
    assert answer["response_metadata"]["messages"] == [lacks]
    blocks = [{"type": "actions", "elements": [{"type": "button", "text": plain("Go")}]}]
    more = [{"color": "#36a64f", "blocks": [DIVIDER]}]
    posted = await pair.web.chat_postMessage(channel=GENERAL, text="x", blocks=blocks, attachments=more)
    (block,), (attachment,) = posted["message"]["blocks"], posted["message"]["attachments"]
    assert block["block_id"]
    assert block["elements"][0]["action_id"]
    assert attachment["blocks"][0]["block_id"]


async def test_all_markdown_of_a_message_has_a_bound_and_an_update_takes_less_than_a_post(pair: Pair) -> None:
    half = {"type": "markdown", "text": "x" * 6_000}
    assert (await pair.web.chat_postMessage(channel=GENERAL, text="x", blocks=[half, half]))["ok"]
    longer = pair.web.chat_postMessage(channel=GENERAL, text="x", blocks=[half, half, half])
    assert await failing(longer) == "msg_blocks_too_long"
    ts = (await pair.web.chat_postMessage(channel=GENERAL, text="x" * 40_000))["ts"]
    assert (await pair.web.chat_update(channel=GENERAL, ts=ts, text="x" * 4_000))["ok"]
    assert await failing(pair.web.chat_update(channel=GENERAL, ts=ts, text="x" * 4_001)) == "msg_too_long"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"attachments": [{"text": "x"}, {"blocks": [DIVIDER, EMPTY]}]},
            "invalid_attachments",
            "[ERROR] must be more than 0 characters [json-pointer:/attachments/1/blocks/1/text/text]",
        ),
        (
            {"attachments": [{"blocks": "x"}]},
            "invalid_attachments",
            "[ERROR] must provide an array [json-pointer:/attachments/0/blocks]",
        ),
        ({"attachments": [{"text": "x"}] * 101}, "too_many_attachments", None),
        ({"blocks": [TABLE, TABLE]}, "invalid_attachments", "only_one_table_allowed"),
    ],
)
async def test_attachments(pair: Pair, given: dict[str, Any], error: str, message: str | None) -> None:
    answer = await refused(pair.web.chat_postMessage(channel=GENERAL, text="x", **given))
    assert answer["error"] == error
    assert answer.get("response_metadata") == (message and {"messages": [message]})


async def test_streamed_message_has_its_blocks_in_order_and_one_table(pair: Pair) -> None:
    said = await pair.said()
    thread = {"channel": said["channel"], "thread_ts": said["ts"]}
    thread |= {"recipient_team_id": "T", "recipient_user_id": ADA}
    wrong_mode = pair.web.chat_startStream(**thread, task_display_mode="list")
    assert await failing(wrong_mode) == "invalid_arguments"
    shown = [{"type": "blocks", "blocks": [TABLE]}]
    chunks: list[dict[str, Any]] = [
        {"type": "plan_update", "title": "Steps"},
        {"type": "task_update", "id": "1", "title": "Look", "status": "in_progress"},
        {"type": "markdown_text", "text": "Before"},
        *shown,
    ]
    stream = await pair.web.chat_startStream(**thread, task_display_mode="plan", chunks=chunks)
    where = {"channel": said["channel"], "ts": stream["ts"]}
    for wrong, error in (
        (shown, "invalid_attachments"),
        ([{"type": "task_update", "id": "1", "status": "done"}], "invalid_chunks"),
        ([{"type": "task_update", "id": "1", "title": "x" * 257}], "invalid_chunks"),
    ):
        assert await failing(pair.web.chat_appendStream(**where, chunks=wrong)) == error
    after = [{"type": "markdown_text", "text": "After"}]
    ended = await pair.web.chat_stopStream(**where, chunks=after, blocks=[DIVIDER])
    parts = [block.get("text", block["type"]) for block in ended["message"]["blocks"]]
    assert parts == ["Before", "table", "After", "divider"]
    assert ended["message"]["text"] == "BeforeAfter"


async def test_search_takes_the_token_of_a_persons_message() -> None:
    async with simulated() as pair:
        said = await pair.control.say("a rare word", mention=True, wait=True)
        await pair.settled(said["events"][0]["id"], "delivered")
        event = pair.app.events[-1]["event"]

        async def search(**given: str) -> Any:
            return await pair.web.api_call("assistant.search.context", json=given)

        found = await search(query=event["text"], action_token=event["action_token"])
        (message,) = found["results"]["messages"]
        assert (message["message_ts"], message["channel_id"]) == (event["ts"], event["channel"])
        assert message["permalink"].endswith(f"/#{event['channel']}/{event['ts']}")
        assert await failing(search(query="x")) == "invalid_action_token"
        assert await failing(search(query="x", action_token="1.2.3")) == "invalid_action_token"
        assert await failing(search()) == "invalid_arguments"
