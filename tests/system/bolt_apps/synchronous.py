"""An ``App`` whose listeners fail and die where a test wants it. ``asynchronous.py`` does the same."""

import os
import time
from typing import Any

from slack_bolt import App
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError

from tests.system.bolt_apps.failing import FOLDER, fail_at_once

app = App(token=os.environ["SLACK_BOT_TOKEN"])


def fail(text: str, where: str) -> None:
    """Fail or die here if the text says so, once."""
    fail_at_once(text, where)
    if "slow" in text:
        time.sleep(0.2)  # a listener that works
    if f"wait-{where}" in text:
        while not (FOLDER / "go").exists():
            time.sleep(0.01)


@app.event("app_mention")
def mentioned(event: dict[str, Any], say: Any, client: Any) -> None:
    text, thread = event["text"], event["ts"]
    if "odd" in text:  # slack-sdk's client makes a query of any value by str(); its asynchronous one does not
        query = {"channel": event["channel"], "timestamp": thread, "name": Exception("odd")}
        client.api_call("reactions.add", params=query)
        client.api_call("reactions.remove", data=query | {"name": b"odd"})
    for _ in range(text.count("react")):
        try:
            client.reactions_add(channel=event["channel"], timestamp=thread, name="hourglass")
        except SlackApiError as error:
            say(f"warning: {error.response['error']}", thread_ts=thread)
            return
    if "alone" in text:
        WebClient(token=os.environ["SLACK_BOT_TOKEN"]).chat_postMessage(
            channel=event["channel"], text="by a client of its own", thread_ts=thread
        )
    elif "stream" in text:
        stream = client.chat_stream(
            channel=event["channel"], thread_ts=thread, recipient_team_id="T", recipient_user_id="U"
        )
        stream.append(markdown_text="one " * 100)
        fail(text, "within")
        stream.stop(markdown_text="end")
    else:
        said = say("first answer", thread_ts=thread)
        fail(text, "between")
        if "wait-between" in text:
            client.reactions_add(channel=event["channel"], timestamp=thread, name="eyes")
        client.chat_postMessage(channel=event["channel"], text=f"after {said['ts']}", thread_ts=thread)
        app.client.chat_postMessage(channel=event["channel"], text="by the app", thread_ts=thread)
    fail(text, "last")


@app.event("reaction_added")
def reacted() -> None: ...


def noted(event: dict[str, Any]) -> None:
    (FOLDER / f"listener {event['reaction']}").touch()
    fail(event["reaction"], "listener")


def lazy_one(event: dict[str, Any], say: Any) -> None:
    say(f"one {event['reaction']}", channel=event["item"]["channel"])
    fail(event["reaction"], "one")
    (FOLDER / f"one {event['reaction']}").touch()


def lazy_two(event: dict[str, Any], say: Any) -> None:
    fail(event["reaction"], "two")
    say(f"two {event['reaction']}", channel=event["item"]["channel"])
    (FOLDER / f"two {event['reaction']}").touch()


app.event("reaction_removed")(ack=noted, lazy=[lazy_one, lazy_two])


@app.shortcut("open")
def opened(ack: Any, shortcut: dict[str, Any], client: Any) -> None:
    ack()
    view = {"type": "modal", "callback_id": "v", "title": {"type": "plain_text", "text": "V"}, "blocks": []}
    answer = client.views_open(trigger_id=shortcut["trigger_id"], view=view)
    fail("fail-opened", "opened")
    client.chat_postMessage(channel=shortcut["user"]["id"], text=f"opened {answer['view']['id']}")


@app.command("/work")
def work(ack: Any, respond: Any, command: dict[str, Any]) -> None:
    ack("working")
    respond("first response")
    fail(command["text"], "between")
    respond("second response")


def never() -> bool:
    return False


@app.command("/nobody", matchers=[never])
def nobody() -> None: ...


@app.error
def failed(error: Exception, body: dict[str, Any], client: Any) -> None:
    event = body.get("event", {})
    if "sorry" in event.get("text", ""):
        client.chat_postMessage(channel=event["channel"], text=f"sorry: {error}", thread_ts=event["ts"])
