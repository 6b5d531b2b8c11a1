"""Some of Slack's errors end an event; after others it is tried again."""

import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from surelane_worker.slack.client import (
    NowhereToReplyError,
    ResponseRefusedError,
    final_reason,
    slack_error,
    unknown_whether_done,
)


def answered(error: str, status: int = 200) -> SlackApiError:
    response = AsyncSlackResponse(
        client=AsyncWebClient(),
        http_verb="POST",
        api_url="https://slack.com/api/chat.postMessage",
        req_args={},
        data={"ok": False, "error": error},
        headers={},
        status_code=status,
    )
    return SlackApiError("refused", response)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("error", ["invalid_auth", "not_in_channel", "msg_too_long", "view_too_large"])
def test_errors_that_no_attempt_can_mend_are_final(error: str) -> None:
    assert final_reason(answered(error)) == error


@pytest.mark.parametrize(
    "error", ["ratelimited", "internal_error", "fatal_error", "service_unavailable", "new_error"]
)
def test_errors_that_may_pass_are_not(error: str) -> None:
    assert final_reason(answered(error)) is None


def test_nowhere_to_reply_is_final() -> None:
    assert final_reason(NowhereToReplyError()) == "nowhere_to_reply"


@pytest.mark.parametrize(("status", "reason"), [(404, "response_refused"), (500, None), (429, None)])
def test_used_up_response_url_is_final(status: int, reason: str | None) -> None:
    assert final_reason(ResponseRefusedError(status)) == reason


def test_other_exceptions_are_none_of_slacks() -> None:
    assert slack_error(ValueError("channel_not_found")) is None
    assert final_reason(ValueError("channel_not_found")) is None


def test_only_a_call_without_a_clear_answer_may_have_been_done() -> None:
    assert unknown_whether_done(TimeoutError())
    assert unknown_whether_done(answered("internal_error", 503))
    assert not unknown_whether_done(answered("channel_not_found"))
