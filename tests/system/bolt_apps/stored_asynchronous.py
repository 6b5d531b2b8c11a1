"""An ``AsyncApp`` with the worker's installations."""

from typing import Any

from slack_bolt.async_app import AsyncApp

from surelane_worker.bolt import installations

app = AsyncApp(installation_store=installations.asynchronous)


@app.event("app_mention")
async def mentioned(event: dict[str, Any], say: Any) -> None:
    """Answer with what was said."""
    await say(event["text"].partition(" ")[2], thread_ts=event["ts"])
