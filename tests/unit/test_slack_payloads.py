"""Payloads name a place for the reply, modals keep what was entered, and some errors are final."""

from types import SimpleNamespace
from typing import Any

import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.http_retry.request import HttpRequest
from slack_sdk.http_retry.response import HttpResponse
from slack_sdk.http_retry.state import RetryState
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from surelane.slack import Place, place_of, response_url_of
from surelane_worker.handling.answers import late_view
from surelane_worker.slack.client import (
    NowhereToReplyError,
    RateLimitHandler,
    ResponseRefusedError,
    final_reason,
    slack_error,
    unknown_whether_done,
)
from surelane_worker.slack.limits import SlackBusyError


def inner(**fields: Any) -> dict[str, Any]:
    return {"type": "event_callback", "team_id": "T1", "event": fields}


THREAD = {"channel": "C1", "user": "U1"}
BUTTON = {name: {"id": f"{name[0].upper()}1"} for name in ("team", "user", "channel")}
PLACES: dict[str, tuple[dict[str, Any], Place]] = {
    "a message that begins a thread": (
        inner(type="app_mention", ts="1.1", **THREAD), Place("C1", "1.1", "1.1", "1.1", "U1", "T1", "T1")),
    "a message in a thread": (
        inner(type="message", ts="2.2", thread_ts="1.1", **THREAD), Place("C1", "1.1", "2.2", "2.2", "U1", "T1", "T1")),
    "a reaction": (
        inner(type="reaction_added", item={"channel": "C1", "ts": "1.1"}, user="U1", event_ts="3.3"),
        Place("C1", "1.1", "1.1", "1.1", "U1", "T1", "T1")),
    "an assistant's thread": (
        inner(assistant_thread={"channel_id": "D1", "thread_ts": "1.1"}, event_ts="3.3"),
        Place("D1", "1.1", None, "3.3", None, "T1", "T1")),
    "an event about no message": (
        inner(type="member_joined_channel", event_ts="3.3", **THREAD),
        Place("C1", None, None, "3.3", "U1", "T1", "T1")),
    "an event with a channel object": (
        inner(type="channel_created", channel={"id": "C1", "name": "new"}, event_ts="3.3"),
        Place("C1", None, None, "3.3", None, "T1", "T1")),
    "a slash command": (
        {"command": "/hi", "team_id": "T1", "channel_id": "C1", "user_id": "U1"},
        Place("C1", None, None, None, "U1", "T1", "T1")),
    "a button in a thread": (
        BUTTON | {"type": "block_actions", "message": {"ts": "2.2", "thread_ts": "1.1"}},
        Place("C1", "1.1", "2.2", "2.2", "U1", "T1", "T1")),
    "a modal": ({"type": "view_submission", "user": {"id": "U1"}, "channel": None}, Place(user="U1")),
    "nonsense": (inner(channel=7, ts=None, user=[], item="x"), Place(team="T1", workspace="T1")),
}  # fmt: skip


@pytest.mark.parametrize(("payload", "place"), PLACES.values(), ids=PLACES)
def test_place(payload: dict[str, Any], place: Place) -> None:
    assert place_of(payload) == place


@pytest.mark.parametrize(
    "named",
    [{"response_url": "https://r"}, {"response_urls": [{"block_id": "b", "response_url": "https://r"}]}],
)
def test_only_an_event_of_slacks_has_aresponse_url_of(named: dict[str, Any]) -> None:
    payload = {"channel": "C1", **named}
    assert response_url_of("slack.view_submission", payload) == "https://r"
    assert response_url_of("agent-turn", payload) is None


OPTION = {"text": {"type": "plain_text", "text": "One"}, "value": "1"}


@pytest.mark.parametrize(
    ("entered", "initial"),
    [
        ({"type": "plain_text_input", "value": "it"}, {"initial_value": "it"}),
        ({"type": "plain_text_input", "value": None}, {}),
        ({"type": "rich_text_input", "rich_text_value": {"a": 1}}, {"initial_value": {"a": 1}}),
        ({"type": "static_select", "selected_option": OPTION}, {"initial_option": OPTION}),
        ({"type": "checkboxes", "selected_options": [OPTION]}, {"initial_options": [OPTION]}),
        ({"type": "datepicker", "selected_date": "2026-01-01"}, {"initial_date": "2026-01-01"}),
        ({"type": "multi_users_select", "selected_users": ["U1"]}, {"initial_users": ["U1"]}),
        ({"type": "file_input", "files": [{"id": "F1"}]}, {}),
    ],
)
def test_what_was_entered_is_the_initial_value(entered: dict[str, Any], initial: dict[str, Any]) -> None:
    element = {"type": entered["type"], "action_id": "a"}
    block = {"type": "input", "block_id": "b", "element": element | {"initial_value": "old"}}
    view = {"id": "V1", "type": "modal", "title": {"type": "plain_text", "text": "T"}, "close": None}
    state = {"state": {"values": {"b": {"a": entered}}}}
    answer = {"response_action": "errors", "errors": {"b": "Wrong."}}
    late = late_view({**view, **state, "blocks": [block]}, answer)
    assert late["blocks"][0]["element"] == element | initial
    assert late["blocks"][1]["block_id"] == "surelane.error:b"
    assert late.keys() == {"type", "title", "blocks"}


def answered(error: str, status: int = 200) -> SlackApiError:
    url, data = "https://slack.com/api/chat.postMessage", {"ok": False, "error": error}
    client = AsyncWebClient()
    response = AsyncSlackResponse(
        client=client, http_verb="POST", api_url=url, req_args={}, data=data, headers={}, status_code=status
    )
    return SlackApiError("refused", response)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        *(
            (answered(each), each)
            for each in ("invalid_auth", "channel_not_found", "msg_too_long", "view_too_large")
        ),
        *((answered(each), None) for each in ("ratelimited", "internal_error", "fatal_error", "new_error")),
        (answered("service_unavailable"), None),
        (NowhereToReplyError(), "nowhere_to_reply"),
        *((ResponseRefusedError(404), "response_refused"), (ResponseRefusedError(500), None)),
        (ResponseRefusedError(429), None),
        (ValueError("channel_not_found"), None),
    ],
    ids=str,
)
def test_what_no_attempt_can_mend_is_final(error: Exception, reason: str | None) -> None:
    assert final_reason(error) == reason


@pytest.mark.parametrize(
    ("status", "body", "limited"),
    [
        (429, None, True),  # no JSON: slack-sdk raises an error that has the answer
        (429, {}, True),
        (200, {"error": "ratelimited"}, True),
        (200, {"error": "rate_limited"}, True),
        *(
            (status, body, False)
            for status, body in ((200, {"error": ["ratelimited"]}), (200, {}), (500, None))
        ),
    ],
)
async def test_a_limit_is_read_from_each_form_of_slacks_answer(
    status: int, body: Any, *, limited: bool
) -> None:
    handler, request = RateLimitHandler(3), HttpRequest(method="POST", url="", headers={})
    headers: dict[str, Any] = {"retry-after": "600"}
    given: dict[str, Any] = {"state": RetryState(), "request": request, "response": None}
    if body is None:
        given["error"] = SlackApiError("", SimpleNamespace(status=status, headers=headers))  # type: ignore[no-untyped-call]
    else:
        given["response"] = HttpResponse(status_code=status, headers=headers, body=body)
    assert await handler.can_retry_async(**given) is limited
    if limited:
        with pytest.raises(SlackBusyError, match="600 s"):
            await handler.prepare_for_next_attempt_async(**given)


def test_only_a_call_without_a_clear_answer_may_have_been_done() -> None:
    assert slack_error(ValueError("channel_not_found")) is None
    assert unknown_whether_done(TimeoutError())
    for error in ("internal_error", "fatal_error", "request_timeout", "service_unavailable"):
        assert unknown_whether_done(answered(error))
    assert unknown_whether_done(answered("channel_not_found", 503))
    unreadable = SlackApiError("no JSON", SimpleNamespace(status=200))  # type: ignore[no-untyped-call]
    assert unknown_whether_done(unreadable)
    odd: tuple[Any, ...] = [], None, {"ok": False, "error": None}, b"gzip"
    for said in odd:
        unreadable = answered("")
        unreadable.response.data = said
        assert unknown_whether_done(unreadable), said
    assert not unknown_whether_done(answered("channel_not_found"))
