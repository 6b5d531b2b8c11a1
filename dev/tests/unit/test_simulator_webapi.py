"""The simulated Web API's methods work without HTTP."""

from contextlib import suppress

import pytest

from surelane_dev.simulator.installs import RefusedGrantError
from surelane_dev.simulator.interactions import Interactions
from surelane_dev.simulator.state import state_of
from surelane_dev.simulator.webapi.call import ApiError, MethodCall, SlackState
from surelane_dev.simulator.webapi.methods import METHODS
from surelane_dev.simulator.workspace.demo import demo_workspace

GENERAL, ADA = "C0GENERAL1", "U0ADA00001"
NAMES = (
    *("attachments", "blocks", "bot", "channel", "channel_id", "chunks", "cursor", "email", "error"),
    *("external_id", "filename", "files", "function_execution_id", "hash", "initial_comment", "latest"),
    *("length", "limit", "markdown_text", "message_ts", "metadata", "name", "oldest", "outputs", "post_at"),
    *("prompts", "recipient_team_id", "recipient_user_id", "scheduled_message_id", "session_status"),
    *("status", "text", "thread_ts", "timestamp", "title", "trigger_id", "ts", "types", "user", "user_id"),
    *("users", "view", "view_id"),
)
ODD: tuple[object, ...] = (
    *(None, 7, -1.5, True, "", " ", "[[]]", "{}", "\ud800", [], [1], ["x"], [{}], {}, {"type": 1}),
    [{"type": "actions", "elements": [1]}],
    [{"type": "actions", "elements": 1}],
    *({"type": "modal", "title": 1, "blocks": 1}, [{"type": "markdown_text", "text": 1}]),
    *(
        {"type": kind, "title": {"type": "plain_text", "text": "x"}, "blocks": [block]}
        for kind in ("modal", "home")
        for block in (
            {"type": 1},
            {"type": "divider", "block_id": 1},
            {"type": "actions"},
            {"type": "actions", "elements": [{}]},
            {"type": "actions", "elements": [{"type": "static_select", "options": [{"text": 1}]}]},
            {"type": "actions", "elements": [{"type": "static_select", "option_groups": [{"options": 1}]}]},
            {"type": "context_actions", "elements": [{"type": "feedback_buttons"}]},
            {"type": "section", "accessory": 1},
            {"type": "input", "element": {"type": []}},
            {"type": "input", "label": {}, "element": {"type": "number_input", "min_value": "x"}},
        )
    ),
    [{"id": 1}],
    [{"type": "blocks", "blocks": 1}],
    [{"type": "blocks", "blocks": [1]}],
    [{"type": "task_update", "id": []}],
)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_whatever_the_arguments_are_a_call_ends_as_slacks_do(method: str) -> None:
    workspace = demo_workspace()
    asked = workspace.post(workspace.channels[GENERAL], ADA, "hello")
    slack = SlackState(workspace, Interactions("http://slack.example"))
    good: dict[str, object] = {"channel": GENERAL, "channel_id": GENERAL, "text": "x", "name": "eyes"}
    good |= dict.fromkeys(("ts", "thread_ts", "timestamp"), asked.ts)
    good |= {"recipient_team_id": "T", "recipient_user_id": ADA, "user": ADA, "users": ADA, "user_id": ADA}
    good |= {"filename": "x", "length": "1", "files": [{"id": "F1"}], "external_id": "mine"}
    for name in NAMES:
        for odd in ODD:
            given = good | {"trigger_id": slack.interactions.new_trigger(ADA), name: odd}
            with suppress(ApiError, RefusedGrantError):
                assert isinstance(METHODS[method].run(MethodCall(given, slack)), dict)
    for view in slack.interactions.views.values():
        state_of(view.content["blocks"], {}, lambda *_: {})
