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
            for each in (
                "invalid_auth",
                "not_in_channel",
                "channel_not_found",
                "msg_too_long",
                "view_too_large",
            )
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


def test_only_a_call_without_a_clear_answer_may_have_been_done() -> None:
    assert slack_error(ValueError("channel_not_found")) is None
    assert unknown_whether_done(TimeoutError())
    assert unknown_whether_done(answered("internal_error", 503))
    assert not unknown_whether_done(answered("channel_not_found"))
