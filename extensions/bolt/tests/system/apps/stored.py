"""An app of each sort with the worker's installations. Each answers with what was said."""

from typing import Any

from slack_bolt import App
from slack_bolt.async_app import AsyncApp

from surelane_bolt import installations

asynchronous = AsyncApp(installation_store=installations.asynchronous)
synchronous = App(installation_store=installations.synchronous)


@asynchronous.event("app_mention")
async def mentioned(event: dict[str, Any], say: Any) -> None:
    await say(event["text"].partition(" ")[2], thread_ts=event["ts"])


@synchronous.event("app_mention")
def mentioned_too(event: dict[str, Any], say: Any) -> None:
    say(event["text"].partition(" ")[2], thread_ts=event["ts"])
