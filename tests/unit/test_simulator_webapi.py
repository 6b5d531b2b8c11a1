"""The simulated Web API's methods work without HTTP."""

from contextlib import suppress

import pytest
from dev.simulator.interactions import Interactions
from dev.simulator.webapi.call import ApiError, Call, Slack
from dev.simulator.webapi.dispatch import METHODS
from dev.simulator.workspace.demo import demo_workspace

GENERAL, ADA = "C0GENERAL1", "U0ADA00001"
NAMES = (
    *(
        "channel",
        "channel_id",
        "text",
        "markdown_text",
        "thread_ts",
        "ts",
        "timestamp",
        "blocks",
        "attachments",
    ),
    *(
        "metadata",
        "chunks",
        "user",
        "users",
        "name",
        "limit",
        "cursor",
        "oldest",
        "latest",
        "types",
        "status",
    ),
    *("title", "prompts", "trigger_id", "view", "view_id", "recipient_team_id", "recipient_user_id", "error"),
)
ODD: tuple[object, ...] = (
    *(None, 7, -1.5, True, "", " ", "[[]]", "{}", "\ud800", [], [1], ["x"], [{}], {}, {"type": 1}),
    [{"type": "actions", "elements": [1]}],
    [{"type": "actions", "elements": 1}],
    *({"type": "modal", "title": 1, "blocks": 1}, [{"type": "markdown_text", "text": 1}]),
    [{"type": "blocks", "blocks": 1}],
    [{"type": "blocks", "blocks": [1]}],
    [{"type": "task_update", "id": []}],
)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_whatever_the_arguments_are_a_call_ends_as_slacks_do(method: str) -> None:
    workspace = demo_workspace()
    asked = workspace.post(workspace.channels[GENERAL], ADA, "hello")
    slack = Slack(workspace, Interactions("http://slack.example"))
    good: dict[str, object] = {
        "channel": GENERAL,
        "channel_id": GENERAL,
        "text": "x",
        "name": "eyes",
        "user": ADA,
    }
    good |= dict.fromkeys(("ts", "thread_ts", "timestamp"), asked.ts)
    good |= {"recipient_team_id": "T", "recipient_user_id": ADA, "trigger_id": "1", "users": ADA}
    for name in NAMES:
        for odd in ODD:
            with suppress(ApiError):
                assert isinstance(METHODS[method].run(Call(method, good | {name: odd}), slack), dict)
