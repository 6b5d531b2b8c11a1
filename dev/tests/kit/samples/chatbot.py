"""The listeners of bolt-python-ai-chatbot: mentions, direct messages, a command, *Home*, a function, an assistant."""

import os
from typing import Any

from slack_bolt import Ack, App, Assistant, BoltContext, Complete, Fail, Say, SetStatus, SetSuggestedPrompts
from slack_bolt.context.get_thread_context import GetThreadContext
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError

HISTORY = ["channels:history", "groups:history", "im:history", "mpim:history"]
MANIFEST = {
    "features": {
        "app_home": {"home_tab_enabled": True},
        "slash_commands": [{"command": "/ask-it"}],
    },
    "oauth_config": {
        "scopes": {
            "bot": [
                *HISTORY,
                *("app_mentions:read", "assistant:write", "channels:join", "channels:read", "chat:write"),
                *("chat:write.public", "commands", "groups:read", "im:read", "im:write", "users:read"),
            ]
        }
    },
    "settings": {
        "event_subscriptions": {
            "bot_events": [
                *("app_home_opened", "app_mention", "assistant_thread_context_changed"),
                *("assistant_thread_started", "function_executed", "message.channels", "message.im"),
            ]
        }
    },
}
MODELS = {"small": "Plain", "large": "Grand"}
SUMMARY = "Sum up the channel"
WAIT = "One moment…"
chosen: dict[str, str] = {}
"""The models that people chose."""

REFUSED = {("conversations.history", "not_in_channel"), ("conversations.history", "channel_not_found")}
"""Calls that Slack refuses, as the sample expects."""

app = App(token=os.environ["SLACK_BOT_TOKEN"])
assistant = Assistant()


def model(user: str, prompt: str, before: list[dict[str, Any]] | None = None) -> str:
    """Answer as a model does: say which one, what was asked, and how much it was told before."""
    return f"{chosen.get(user, 'none')}: {prompt} ({len(before or [])})"


def options() -> list[dict[str, Any]]:
    """Return the models as options of a menu."""
    return [
        {"text": {"type": "plain_text", "text": f"{name} ({maker})", "emoji": True}, "value": name}
        for name, maker in MODELS.items()
    ]


@app.event("app_home_opened")
def opened(client: WebClient, event: dict[str, Any]) -> None:
    """Show a menu of models on *Home*, with the one that was chosen."""
    if event["tab"] != "home":
        return
    offered, user = options(), event["user"]
    if user not in chosen:
        offered.append({"text": {"type": "plain_text", "text": "Choose", "emoji": True}, "value": "null"})
    initial = next((each for each in offered if each["value"] == chosen.get(user)), offered[-1])
    menu = {
        "type": "static_select",
        "action_id": "choose",
        "options": offered,
        "initial_option": initial,
    }
    bold = {"type": "text", "text": "Choose a model", "style": {"bold": True}}
    blocks = [
        {"type": "header", "text": {"type": "plain_text", "text": "Welcome", "emoji": True}},
        {"type": "divider"},
        {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": [bold]}]},
        {"type": "actions", "elements": [menu]},
    ]
    client.views_publish(user_id=user, view={"type": "home", "blocks": blocks})


@app.action("choose")
def choose(ack: Ack, body: dict[str, Any]) -> None:
    """Keep the choice."""
    ack()
    chosen[body["user"]["id"]] = body["actions"][0]["selected_option"]["value"]


@app.event("app_mention")
def mentioned(client: WebClient, event: dict[str, Any], say: Say) -> None:
    """Read the conversation, say that it takes a moment, and replace that by the answer."""
    channel, thread_ts = event["channel"], event.get("thread_ts")
    if thread_ts:
        found = client.conversations_replies(channel=channel, ts=thread_ts, limit=10)["messages"]
    else:
        found = client.conversations_history(channel=channel, limit=10)["messages"]
        thread_ts = event["ts"]
    waiting = say(text=WAIT, thread_ts=thread_ts)
    answer = model(event["user"], event["text"].split()[-1], found)
    client.chat_update(channel=channel, ts=waiting["ts"], text=answer)


@app.event("message")
def written(client: WebClient, event: dict[str, Any], say: Say) -> None:
    """Answer a direct message in the same way."""
    if event.get("channel_type") != "im":
        return
    thread_ts, found = event.get("thread_ts"), []
    if thread_ts:
        found = client.conversations_replies(channel=event["channel"], limit=10, ts=thread_ts)["messages"]
    waiting = say(text=WAIT, thread_ts=thread_ts)
    answer = model(event["user"], event["text"], found[:-1])
    client.chat_update(channel=event["channel"], ts=waiting["ts"], text=answer)


@app.command("/ask-it")
def ask(ack: Ack, client: WebClient, command: dict[str, Any], context: BoltContext) -> None:
    """Show the question and the answer to the person alone."""
    ack()
    where = {"channel": context["channel_id"], "user": context["user_id"]}
    if command["text"] == "":
        client.chat_postEphemeral(**where, text="Ask something.")
        return
    parts = (("quote", command["text"]), ("section", model(where["user"], command["text"])))
    elements = [
        {"type": f"rich_text_{sort}", "elements": [{"type": "text", "text": text}]} for sort, text in parts
    ]
    client.chat_postEphemeral(**where, blocks=[{"type": "rich_text", "elements": elements}])


@app.function("sum_up")
def sum_up(ack: Ack, inputs: dict[str, Any], client: WebClient, complete: Complete, fail: Fail) -> None:
    """Sum up a channel for a workflow."""
    ack()
    try:
        found = client.conversations_history(channel=inputs["channel_id"], limit=10)["messages"]
        person = inputs["user_context"]
        complete({"user_context": person, "response": model(person["id"], SUMMARY, found)})
    except Exception as error:  # noqa: BLE001 - as the sample
        fail(str(error))


@assistant.thread_started
def started(
    say: Say, get_thread_context: GetThreadContext, set_suggested_prompts: SetSuggestedPrompts
) -> None:
    """Greet. Suggest a summary of the channel that the person looks at."""
    say("How can I help?")
    prompts = [{"title": "A name", "message": "Suggest a name"}]
    context = get_thread_context()
    if context is not None and context.channel_id is not None:
        prompts.append({"title": "A summary", "message": SUMMARY})
    set_suggested_prompts(prompts=prompts)


@assistant.user_message
def asked(
    client: WebClient,
    context: BoltContext,
    get_thread_context: GetThreadContext,
    payload: dict[str, Any],
    say: Say,
    set_status: SetStatus,
) -> None:
    """Answer from the thread, or from the channel that the person looks at, which it may have to join."""
    set_status("types…")
    if payload["text"] == SUMMARY:
        about = get_thread_context()
        channel = "" if about is None else str(about.channel_id)
        try:
            history = client.conversations_history(channel=channel, limit=50)
        except SlackApiError as error:
            if error.response["error"] != "not_in_channel":
                raise
            client.conversations_join(channel=channel)
            history = client.conversations_history(channel=channel, limit=50)
        texts = [each["text"] for each in reversed(history["messages"]) if each.get("user")]
        say(model(str(context.user_id), " ".join(texts)))
        return
    ts = context.thread_ts
    replies = client.conversations_replies(channel=str(context.channel_id), ts=str(ts), oldest=ts, limit=10)
    say(model(str(context.user_id), payload["text"], replies["messages"]))


app.assistant(assistant)
