"""An ``AsyncApp`` whose listeners fail and die where a test wants it. ``synchronous.py`` does the same."""

import asyncio
import os
from typing import Any

from slack_bolt.async_app import AsyncApp
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError

from tests.system.bolt_apps.failing import FOLDER, fail_at_once

app = AsyncApp(token=os.environ["SLACK_BOT_TOKEN"])


async def fail(text: str, where: str) -> None:
    """Fail or die here if the text says so, once."""
    fail_at_once(text, where)
    if "slow" in text:
        await asyncio.sleep(0.2)  # a listener that works
    if f"wait-{where}" in text:
        while not (FOLDER / "go").exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.01)


@app.event("app_mention")
async def mentioned(event: dict[str, Any], say: Any, client: Any) -> None:
    text, thread = event["text"], event["ts"]
    for _ in range(text.count("react")):
        try:
            await client.reactions_add(channel=event["channel"], timestamp=thread, name="hourglass")
        except SlackApiError as error:
            await say(f"warning: {error.response['error']}", thread_ts=thread)
            return
    if "alone" in text:
        alone = WebClient(token=os.environ["SLACK_BOT_TOKEN"]).chat_postMessage
        arguments = {"channel": event["channel"], "thread_ts": thread}
        await asyncio.to_thread(alone, text="by a client of its own", **arguments)
    elif "stream" in text:
        stream = await client.chat_stream(
            channel=event["channel"], thread_ts=thread, recipient_team_id="T", recipient_user_id="U"
        )
        await stream.append(markdown_text="one " * 100)
        await fail(text, "within")
        await stream.stop(markdown_text="end")
    else:
        said = await say("first answer", thread_ts=thread)
        await fail(text, "between")
        if "wait-between" in text:
            await client.reactions_add(channel=event["channel"], timestamp=thread, name="eyes")
        await client.chat_postMessage(channel=event["channel"], text=f"after {said['ts']}", thread_ts=thread)
        await app.client.chat_postMessage(channel=event["channel"], text="by the app", thread_ts=thread)
    await fail(text, "last")


@app.event("reaction_added")
async def reacted() -> None: ...


async def noted(event: dict[str, Any]) -> None:
    (FOLDER / f"listener {event['reaction']}").touch()
    await fail(event["reaction"], "listener")


async def lazy_one(event: dict[str, Any], say: Any) -> None:
    await say(f"one {event['reaction']}", channel=event["item"]["channel"])
    await fail(event["reaction"], "one")
    (FOLDER / f"one {event['reaction']}").touch()


async def lazy_two(event: dict[str, Any], say: Any) -> None:
    await fail(event["reaction"], "two")
    await say(f"two {event['reaction']}", channel=event["item"]["channel"])
    (FOLDER / f"two {event['reaction']}").touch()


app.event("reaction_removed")(ack=noted, lazy=[lazy_one, lazy_two])


@app.shortcut("open")
async def opened(ack: Any, shortcut: dict[str, Any], client: Any) -> None:
    await ack()
    view = {"type": "modal", "callback_id": "v", "title": {"type": "plain_text", "text": "V"}, "blocks": []}
    answer = await client.views_open(trigger_id=shortcut["trigger_id"], view=view)
    await fail("fail-opened", "opened")
    await client.chat_postMessage(channel=shortcut["user"]["id"], text=f"opened {answer['view']['id']}")


@app.command("/work")
async def work(ack: Any, respond: Any, command: dict[str, Any]) -> None:
    await ack("working")
    await respond("first response")
    await fail(command["text"], "between")
    await respond("second response")


async def never() -> bool:
    return False


@app.command("/nobody", matchers=[never])
async def nobody() -> None: ...


@app.error
async def failed(error: Exception, body: dict[str, Any], client: Any) -> None:
    event = body.get("event", {})
    if "sorry" in event.get("text", ""):
        await client.chat_postMessage(channel=event["channel"], text=f"sorry: {error}", thread_ts=event["ts"])
