"""An ``App`` of several workspaces, with a custom step of a workflow."""

import os
from pathlib import Path
from typing import Any

from slack_bolt import App
from slack_bolt.authorization import AuthorizeResult

FOLDER = Path(os.environ.get("SURELANE_TEST_FOLDER", "."))
TOKENS = {"T1": "xoxb-one", "T2": "xoxb-two"}


def authorize(team_id: str) -> Any:
    """Return the token of a workspace. The third one is found from the second time on."""
    token = TOKENS.get(team_id)
    if team_id == "T3":
        TOKENS["T3"] = "xoxb-three"
    return AuthorizeResult(enterprise_id=None, team_id=team_id, bot_token=token) if token else None


app = App(authorize=authorize)


@app.event("app_mention")
def mentioned(event: dict[str, Any], say: Any, client: Any) -> None:
    client.reactions_add(channel=event["channel"], timestamp=event["ts"], name="eyes")
    say("hello", metadata={"event_type": "mine", "event_payload": {"a": 1}})


@app.function("reverse")
def reverse(inputs: dict[str, str], complete: Any) -> None:
    complete({"reversed": inputs["text"][::-1]})
    mark = FOLDER / "reversed"
    if not mark.exists():
        mark.touch()
        raise RuntimeError("after complete")
