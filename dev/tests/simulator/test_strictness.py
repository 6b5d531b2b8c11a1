"""The simulated Web API refuses what Slack refuses, in Slack's words, with every client."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.system.slack_app import Pair, simulated

BEARER = {"Authorization": "Bearer xoxb-any"}
JSON_TYPE = {"Content-Type": "application/json; charset=utf-8"}


@pytest.fixture(scope="module")
async def pair() -> AsyncIterator[Pair]:
    async with simulated() as running:
        yield running


async def call(pair: Pair, method: str, **request: Any) -> dict[str, Any]:
    """Call a method; return the body. Every error but Slack's own failures has status 200."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{pair.url}/api/{method}", **({"headers": BEARER} | request)) as response,
    ):
        assert response.status == 200
        assert response.content_type == "application/json"
        answer: dict[str, Any] = await response.json()
        return answer


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({}, "not_authed"),
        ({"Authorization": "Bearer nonsense"}, "invalid_auth"),
        ({"Authorization": "xoxb-any"}, None),
        ({"Authorization": "Bearer xoxp-1"}, "not_allowed_token_type"),
        ({"Authorization": "Bearer xapp-1"}, "not_allowed_token_type"),
        (BEARER, None),
    ],
    ids=["none", "nonsense", "without Bearer", "user token", "app token", "bot token"],
)
async def test_tokens(pair: Pair, headers: dict[str, str], error: str | None) -> None:
    assert (await call(pair, "auth.test", headers=headers)).get("error") == error


async def test_a_token_may_be_a_form_field_but_neither_in_the_query_nor_in_json(pair: Pair) -> None:
    assert (await call(pair, "auth.test", headers={}, data={"token": "xoxb-any"}))["ok"]
    assert (await call(pair, "auth.test", headers={}, params={"token": "xoxb-any"}))["error"] == "not_authed"
    assert (await call(pair, "auth.test", headers={}, json={"token": "xoxb-any"}))["error"] == "not_authed"


async def test_a_method_that_slack_does_not_have(pair: Pair) -> None:
    assert await call(pair, "chat.shout") == {
        "ok": False,
        "error": "unknown_method",
        "req_method": "chat.shout",
    }


async def test_every_missing_argument_is_named(pair: Pair) -> None:
    answer = await call(pair, "conversations.replies")
    assert answer["error"] == "invalid_arguments"
    assert answer["response_metadata"]["messages"] == [
        "[ERROR] missing required field: channel",
        "[ERROR] missing required field: ts",
    ]


@pytest.mark.parametrize(
    ("method", "arguments", "error"),
    [
        ("chat.postMessage", {"channel": "general"}, "no_text"),
        ("chat.postMessage", {"channel": "", "text": "x"}, "channel_not_found"),
        ("chat.postMessage", {"channel": "general", "text": "x" * 40_001}, "msg_too_long"),
        ("chat.postMessage", {"channel": "general", "blocks": "[not json"}, "invalid_blocks_format"),
        (
            "chat.postMessage",
            {"channel": "general", "blocks": '[{"text": "no type"}]'},
            "invalid_blocks_format",
        ),
        ("chat.postMessage", {"channel": "general", "blocks": "[]"}, "no_text"),
        ("chat.postMessage", {"channel": "general", "text": "x", "metadata": "{"}, "invalid_metadata_format"),
        (
            "chat.postMessage",
            {"channel": "general", "text": "x", "metadata": "{}"},
            "invalid_metadata_schema",
        ),
        ("chat.postMessage", {"channel": "general", "text": "x", "thread_ts": "1.1"}, "thread_not_found"),
        (
            "chat.postMessage",
            {"channel": "general", "text": "x", "markdown_text": "x"},
            "markdown_text_conflict",
        ),
        ("chat.postMessage", {"channel": "lounge", "text": "x"}, "not_in_channel"),
        ("chat.startStream", {"channel": "general", "thread_ts": "soon"}, "invalid_thread_ts"),
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


async def test_form_and_json_say_the_same(pair: Pair) -> None:
    blocks = [{"type": "divider", "block_id": "line"}]
    form = await call(
        pair, "chat.postMessage", data={"channel": "C0GENERAL1", "text": "x", "blocks": json.dumps(blocks)}
    )
    body = json.dumps({"channel": "C0GENERAL1", "text": "x", "blocks": blocks})
    plain = await call(pair, "chat.postMessage", data=body, headers=BEARER | JSON_TYPE)
    assert form["message"]["blocks"] == plain["message"]["blocks"] == blocks
    assert "warning" not in plain


async def test_json_without_a_charset_is_taken_with_a_warning(pair: Pair) -> None:
    answer = await call(pair, "chat.postMessage", json={"channel": "C0GENERAL1", "text": "x"})
    assert (answer["ok"], answer["warning"]) == (True, "missing_charset")
    assert answer["response_metadata"]["warnings"] == ["missing_charset"]


async def test_reading_methods_do_not_see_json(pair: Pair) -> None:
    answer = await call(pair, "conversations.history", json={"channel": "C0GENERAL1"})
    assert answer["response_metadata"]["messages"] == ["[ERROR] missing required field: channel"]


async def test_a_call_needs_its_scope() -> None:
    async with simulated(scopes=frozenset({"chat:write", "channels:history"})) as pair:
        assert (await call(pair, "chat.postMessage", data={"channel": "general", "text": "x"}))["ok"]
        answer = await call(pair, "users.list")
        assert (answer["error"], answer["needed"]) == ("missing_scope", "users:read")
        assert answer["provided"] == "channels:history,chat:write"


async def test_api_test_needs_no_token_and_answers_what_it_is_told(pair: Pair) -> None:
    assert await call(pair, "api.test", headers={}, data={"foo": "bar"}) == {
        "ok": True,
        "args": {"foo": "bar"},
    }
    assert (await call(pair, "api.test", headers={}, data={"error": "my_error"}))["error"] == "my_error"


async def test_blocks_and_buttons_without_ids_are_given_some(pair: Pair) -> None:
    button = {"type": "button", "text": {"type": "plain_text", "text": "Go"}}
    blocks = [{"type": "actions", "elements": [button]}]
    answer = await call(
        pair, "chat.postMessage", json={"channel": "C0GENERAL1", "text": "x", "blocks": blocks}
    )
    (block,) = answer["message"]["blocks"]
    assert block["block_id"]
    assert block["elements"][0]["action_id"]
