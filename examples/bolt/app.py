"""A slack-bolt app with a listener of every sort. It knows nothing of Surelane.

``python app.py`` runs it in Socket Mode. ``SURELANE_HANDLERS=app:app`` runs it on Surelane's workers, as it is.
"""

import os
import re

from slack_bolt import Ack, App, Assistant, BoltContext, Complete, Fail, Respond, Say, SetStatus
from slack_bolt.adapter.socket_mode import SocketModeHandler
from slack_sdk import WebClient

Body = dict[str, object]

app = App(token=os.environ["SLACK_BOT_TOKEN"])
assistant = Assistant()

CITIES = ["Amsterdam", "Antwerp", "Berlin", "Bern", "Bremen"]

BUTTON = {
    "type": "actions",
    "elements": [
        {"type": "button", "action_id": "approve", "text": {"type": "plain_text", "text": "Approve"}}
    ],
}
MODAL = {
    "type": "modal",
    "callback_id": "booking",
    "notify_on_close": True,
    "title": {"type": "plain_text", "text": "Book a trip"},
    "submit": {"type": "plain_text", "text": "Book"},
    "blocks": [
        {
            "type": "input",
            "block_id": "days",
            "label": {"type": "plain_text", "text": "Days"},
            "element": {"type": "plain_text_input", "action_id": "days"},
        },
        {
            "type": "input",
            "block_id": "city",
            "optional": True,
            "label": {"type": "plain_text", "text": "City"},
            "element": {"type": "external_select", "action_id": "city", "min_query_length": 0},
        },
    ],
}


@app.middleware
def greet(context: BoltContext, next) -> None:  # type: ignore[no-untyped-def]  # noqa: A002, ANN001 - Bolt's name
    """Pass something on to the listeners."""
    context["greeting"] = "Hello"
    next()


@app.event("app_mention")
def mentioned(event: Body, context: BoltContext, say: Say) -> None:
    """Answer in the thread, with a button."""
    thread = str(event.get("thread_ts") or event["ts"])
    say(f"{context['greeting']} <@{event['user']}>!", thread_ts=thread)
    say("Shall I?", blocks=[BUTTON], thread_ts=thread)


@app.message(re.compile("(weather|rain)"))
def weather(context: BoltContext, say: Say) -> None:
    """Answer a message that matches."""
    say(f"I know nothing about the {context['matches'][0]}.")


@app.event("reaction_added")
def reacted(event: Body, client: WebClient) -> None:
    """Answer an event with the client."""
    channel = event["item"]["channel"]  # type: ignore[index]
    client.chat_postMessage(channel=channel, text=f"Thank you for :{event['reaction']}:")


def accept(ack: Ack, command: Body) -> None:
    """Answer a command within three seconds."""
    if command["text"]:
        ack(f"Deploying {command['text']}…")
    else:
        ack(response_type="ephemeral", text="Deploy what?", blocks=[])


def deploy(respond: Respond, command: Body) -> None:
    """Do the work of the command."""
    if command["text"]:
        respond(f"Deployed {command['text']}.", response_type="in_channel")


app.command("/deploy")(ack=accept, lazy=[deploy])


@app.action("approve")
def approved(ack: Ack, body: Body, respond: Respond, say: Say) -> None:
    """Take a click on the button."""
    ack()
    respond("Approved.", replace_original=True)
    say(f"Approved by <@{body['user']['id']}>")  # type: ignore[index]


@app.shortcut("book")
def book(ack: Ack, shortcut: Body, client: WebClient) -> None:
    """Open a modal from a global shortcut or a message's."""
    ack()
    client.views_open(trigger_id=str(shortcut["trigger_id"]), view=MODAL)


@app.options("city")
def cities(ack: Ack, options: Body) -> None:
    """Fill the menu of cities."""
    found = [city for city in CITIES if city.startswith(str(options["value"]))]
    ack(options=[{"text": {"type": "plain_text", "text": city}, "value": city} for city in found])


@app.view("booking")
def booked(ack: Ack, view: Body, body: Body, client: WebClient) -> None:
    """Check the modal's input, and confirm it in a direct message."""
    days = view["state"]["values"]["days"]["days"]["value"]  # type: ignore[index]
    if not days.isdigit():
        ack(response_action="errors", errors={"days": "A number, please"})
        return
    ack()
    user = body["user"]["id"]  # type: ignore[index]
    client.chat_postMessage(channel=user, text=f"Booked for {days} days")


@app.view_closed("booking")
def closed(ack: Ack, body: Body, client: WebClient) -> None:
    """Take notice of a closed modal."""
    ack()
    client.chat_postMessage(channel=body["user"]["id"], text="Another time, then")  # type: ignore[index]


@app.function("reverse")
def reverse(inputs: dict[str, str], complete: Complete, fail: Fail) -> None:
    """Run a custom step of a workflow."""
    if "text" in inputs:
        complete({"reversed": inputs["text"][::-1]})
    else:
        fail("There is no text")


@assistant.thread_started
def started(say: Say) -> None:
    """Open an assistant's thread."""
    say("How can I help?")


@assistant.user_message
def asked(payload: Body, say: Say, set_status: SetStatus) -> None:
    """Answer in an assistant's thread."""
    set_status("is thinking…")
    say(f"You said: {payload['text']}")


app.assistant(assistant)


@app.error
def failed(error: Exception, logger) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - Bolt's
    """Log what a listener raised."""
    logger.error("a listener failed: %s", type(error).__name__)


if __name__ == "__main__":
    SocketModeHandler(app, os.environ["SLACK_APP_TOKEN"]).start()  # type: ignore[no-untyped-call]
