"""An ``App`` that asks for its own messages, as Slack's sample of an assistant's ``bot_message`` listener does."""

import os
from typing import Any

from slack_bolt import App

app = App(token=os.environ["SLACK_BOT_TOKEN"], ignoring_self_events_enabled=False)


@app.event("message")
def heard(event: dict[str, Any], say: Any) -> None:
    kind = event.get("metadata", {}).get("event_type")
    if kind is None:
        say("working", metadata={"event_type": "task", "event_payload": {"number": 7}})
    elif kind == "task":
        number = event["metadata"]["event_payload"]["number"]
        say(f"did {number}", metadata={"event_type": "done", "event_payload": {}})
