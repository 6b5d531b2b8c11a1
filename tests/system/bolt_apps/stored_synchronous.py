"""An ``App`` with the worker's installations."""

from typing import Any

from slack_bolt import App

from surelane_worker.bolt import installations

app = App(installation_store=installations.synchronous)


@app.event("app_mention")
def mentioned(event: dict[str, Any], say: Any) -> None:
    """Answer with what was said."""
    say(event["text"].partition(" ")[2], thread_ts=event["ts"])
