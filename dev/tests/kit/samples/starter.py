"""The listeners of bolt-python-starter-template: each sort of them once."""

import os
import re
from typing import Any

from slack_bolt import Ack, App, BoltContext, Respond, Say
from slack_sdk import WebClient

MANIFEST = {
    "features": {
        "app_home": {"home_tab_enabled": True},
        "shortcuts": [{"name": "Wish", "type": "global", "callback_id": "wish"}],
        "slash_commands": [{"command": "/parrot"}],
    },
    "oauth_config": {"scopes": {"bot": ["channels:history", "chat:write", "commands"]}},
    "settings": {"event_subscriptions": {"bot_events": ["app_home_opened", "message.channels"]}},
}

REFUSED: set[tuple[str, str]] = set()
"""Calls that Slack refuses, as the sample expects."""

app = App(token=os.environ["SLACK_BOT_TOKEN"])


def plain(text: str) -> dict[str, Any]:
    """Return a text object."""
    return {"type": "plain_text", "text": text}


def form(first: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the modal that begins with these blocks."""
    wish = {"type": "plain_text_input", "action_id": "wish", "multiline": True}
    place = {"type": "conversations_select", "action_id": "place", "response_url_enabled": True}
    return {
        "type": "modal",
        "callback_id": "wished",
        "title": plain("A wish"),
        "submit": plain("Send"),
        "blocks": [
            *first,
            {"type": "input", "block_id": "what", "label": plain("What do you wish for?"), "element": wish},
            {"type": "input", "block_id": "where", "label": plain("Where is it told?"), "element": place},
        ],
    }


@app.message(re.compile("(good morning|good evening)"))
def greeted(context: BoltContext, say: Say) -> None:
    """Repeat the greeting that matched."""
    say(f"{context['matches'][0]} to you")


@app.event("app_home_opened")
def opened(client: WebClient, event: dict[str, Any]) -> None:
    """Show *Home*."""
    if event["tab"] != "home":
        return
    texts = (f"Hello <@{event['user']}>", "<https://example.com|Read on>")
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in texts]
    client.views_publish(user_id=event["user"], view={"type": "home", "blocks": blocks})


@app.command("/parrot")
def parrot(ack: Ack, command: dict[str, Any], respond: Respond) -> None:
    """Acknowledge, then answer through the response URL."""
    ack()
    respond(f"You wrote {command['text']}")


@app.shortcut("wish")
def wish(ack: Ack, body: dict[str, Any], client: WebClient) -> None:
    """Open a modal with a button in it."""
    ack()
    button = {"type": "button", "action_id": "more", "text": plain("More")}
    first = {"type": "section", "text": {"type": "mrkdwn", "text": "Press *More*"}, "accessory": button}
    client.views_open(trigger_id=body["trigger_id"], view=form([first]))


@app.action("more")
def more(ack: Ack, body: dict[str, Any], client: WebClient) -> None:
    """Replace the modal, if it is still as it was."""
    ack()
    first = {"type": "section", "text": {"type": "mrkdwn", "text": "This is more"}}
    image = {"type": "image", "image_url": "https://example.com/star.gif", "alt_text": "A star"}
    view = body["view"]
    client.views_update(view_id=view["id"], hash=view["hash"], view=form([first, image]))


@app.view("wished")
def wished(ack: Ack, body: dict[str, Any], view: dict[str, Any], client: WebClient) -> None:
    """Tell the wish where the person wants it told."""
    ack()
    values = view["state"]["values"]
    client.chat_postMessage(
        channel=values["where"]["place"]["selected_conversation"],
        text=f"<@{body['user']['id']}> wishes for {values['what']['wish']['value']}",
    )
