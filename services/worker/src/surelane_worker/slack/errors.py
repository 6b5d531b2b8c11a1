"""Sort Slack's errors into those that another attempt may solve and those that it cannot."""

from slack_sdk.errors import SlackApiError

FINAL = frozenset(
    {
        # the token
        "invalid_auth",
        "not_authed",
        "account_inactive",
        "token_revoked",
        "token_expired",
        "org_login_required",
        "missing_scope",
        "no_permission",
        "not_allowed_token_type",
        "ekm_access_denied",
        "team_access_not_granted",
        # the place
        "channel_not_found",
        "not_in_channel",
        "is_archived",
        "user_not_found",
        "message_not_found",
        "thread_not_found",
        "restricted_action",
        "restricted_action_read_only_channel",
        "restricted_action_thread_only_channel",
        "cannot_reply_to_message",
        "cannot_dm_bot",
        "messages_tab_disabled",
        "channel_type_not_supported",
        # what was sent
        "no_text",
        "msg_too_long",
        "msg_blocks_too_long",
        "invalid_blocks",
        "invalid_blocks_format",
        "invalid_arguments",
        "invalid_arg_name",
        "invalid_array_arg",
        "invalid_name",
        "missing_argument",
        "unknown_method",
        "bad_timestamp",
        "metadata_must_be_sent_from_app",
        "metadata_too_large",
        "invalid_metadata_format",
        "invalid_metadata_schema",
        "expired_trigger_id",
        "invalid_trigger_id",
        "used_url",
        "expired_url",
    }
)
"""Slack's errors that no further attempt can solve."""

UNANSWERABLE = frozenset({400, 404, 410, *range(300, 400)})
"""Final statuses of a response_url: it is used up, expired, refuses the message, or redirects."""


class NowhereToReplyError(Exception):
    """The event names no channel and no response_url: pass ``channel=``."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


class ResponseRefusedError(Exception):
    """Slack refused an answer to a command or an interaction."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the response_url answered {status}")
        self.status = status


class ResponseUrlError(Exception):
    """The response_url is neither Slack's nor the simulator's at SLACK_API_URL: nothing was sent."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


def slack_error(error: BaseException) -> str | None:
    """Return Slack's name for an error, such as ``channel_not_found``, or ``None`` if it is not an error of Slack's."""
    if not isinstance(error, SlackApiError):
        return None
    answered = error.response.get("error") if hasattr(error.response, "get") else None
    return answered if isinstance(answered, str) else None


def final_reason(error: BaseException) -> str | None:
    """Return the reason, for history, why no further attempt can succeed, or ``None`` if one may."""
    match error:
        case NowhereToReplyError():
            return "nowhere_to_reply"
        case ResponseUrlError():
            return "response_url_refused"
        case ResponseRefusedError(status=status) if status in UNANSWERABLE:
            return "response_refused"
    answered = slack_error(error)
    return answered if answered in FINAL else None


def unknown_whether_done(error: BaseException) -> bool:
    """Return whether Slack may have done what a failed call asked for: no answer came, or one of 5xx."""
    if isinstance(error, SlackApiError):
        status = getattr(error.response, "status_code", 0)
        return isinstance(status, int) and status >= 500
    return True
