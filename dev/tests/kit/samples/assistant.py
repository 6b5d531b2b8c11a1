"""The listeners of Slack's Python samples with an assistant: it streams, reads channels, and runs in workflows."""

import os
import re
from collections.abc import Iterator
from typing import Any

from slack_bolt import (
    Ack,
    App,
    Assistant,
    BoltContext,
    Complete,
    Fail,
    Respond,
    Say,
    SetStatus,
    SetSuggestedPrompts,
)
from slack_bolt.context.get_thread_context import GetThreadContext
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from slack_sdk.models.blocks import ContextActionsBlock, FeedbackButtonsElement
from slack_sdk.models.blocks.basic_components import FeedbackButtonObject
from slack_sdk.models.messages.chunk import MarkdownTextChunk, TaskUpdateChunk

MANIFEST = {
    "features": {
        "assistant_view": {"assistant_description": "Answers"},
        "slash_commands": [{"command": "/ask-it"}],
    },
    "oauth_config": {
        "scopes": {
            "bot": [
                *("app_mentions:read", "assistant:write", "channels:history", "channels:join", "chat:write"),
                *("commands", "im:history"),
            ]
        }
    },
    "settings": {
        "event_subscriptions": {
            "bot_events": [
                *("app_mention", "assistant_thread_context_changed", "assistant_thread_started"),
                *("function_executed", "message.channels", "message.im"),
            ]
        }
    },
}
PLAN, SUMMARY, WAITING = "Show me the steps", "Sum up the channel", ["Counting sheep…", "Asking the cat…"]
REFUSED = {("conversations.history", "not_in_channel"), ("conversations.history", "channel_not_found")}
"""Calls that Slack refuses, as the samples expect."""

app = App(token=os.environ["SLACK_BOT_TOKEN"])
assistant = Assistant()


def model(asked: str) -> Iterator[str]:
    """Answer in parts, as a model does."""
    yield "You asked: "
    yield from asked.split(maxsplit=1)


def feedback() -> list[ContextActionsBlock]:
    """Return the buttons below an answer."""
    button = FeedbackButtonsElement(
        action_id="rate",
        positive_button=FeedbackButtonObject(text="Good", accessibility_label="A good answer", value="good"),
        negative_button=FeedbackButtonObject(text="Bad", accessibility_label="A bad answer", value="bad"),
    )
    return [ContextActionsBlock(elements=[button])]


def read(client: WebClient, channel: str) -> str:
    """Return what people wrote in a channel."""
    history = client.conversations_history(channel=channel, limit=50)
    return " ".join(each["text"] for each in reversed(history["messages"]) if each.get("user"))


@assistant.thread_started
def started(
    say: Say, get_thread_context: GetThreadContext, set_suggested_prompts: SetSuggestedPrompts
) -> None:
    """Greet. Suggest a summary of the channel that the person looks at."""
    say("What is it?")
    context = get_thread_context()
    about = [{"title": "A summary", "message": SUMMARY}] if context and context.channel_id else []
    set_suggested_prompts(prompts=[{"title": "Steps", "message": PLAN}, *about])


@assistant.user_message
def asked(
    client: WebClient,
    context: BoltContext,
    get_thread_context: GetThreadContext,
    payload: dict[str, Any],
    say: Say,
    set_status: SetStatus,
) -> None:
    """Sum up a channel, which it may have to join, or stream an answer: of text, or of tasks that change."""
    if payload["text"] == SUMMARY:
        about = get_thread_context()
        channel = "" if about is None else str(about.channel_id)
        try:
            said = read(client, channel)
        except SlackApiError as error:
            if error.response["error"] != "not_in_channel":
                raise
            client.conversations_join(channel=channel)
            said = read(client, channel)
        say(said)
        return
    stream = client.chat_stream(
        channel=payload["channel"],
        thread_ts=payload["thread_ts"],
        recipient_team_id=context.team_id,
        recipient_user_id=context.user_id,
    )
    if payload["text"] != PLAN:
        set_status(status="thinks…", loading_messages=WAITING)
        for part in model(payload["text"]):
            stream.append(markdown_text=part)
        stream.stop(blocks=feedback())
        return
    first: dict[str, Any] = {"id": "1", "title": "Look"}
    second: dict[str, Any] = {"id": "2", "title": "Leap"}
    working = TaskUpdateChunk(**first, status="in_progress", details="- left\n- right")
    waiting = TaskUpdateChunk(**second, status="pending")
    stream.append(chunks=[MarkdownTextChunk(text="Well. "), working, waiting])
    stream.append(chunks=[TaskUpdateChunk(**first, status="complete", output="Nothing is there")])
    done = TaskUpdateChunk(**second, status="complete")
    stream.stop(chunks=[done, MarkdownTextChunk(text="That is all.")])


@app.event("app_mention")
def mentioned(client: WebClient, event: dict[str, Any]) -> None:
    """Stream an answer in the thread."""
    channel, thread_ts = event["channel"], event.get("thread_ts") or event["ts"]
    status: dict[str, Any] = {"status": "thinks…", "loading_messages": WAITING}
    client.assistant_threads_setStatus(channel_id=channel, thread_ts=thread_ts, **status)
    stream = client.chat_stream(
        channel=channel,
        thread_ts=thread_ts,
        recipient_team_id=event["team"],
        recipient_user_id=event["user"],
    )
    for part in model(event["text"].split()[-1]):
        stream.append(markdown_text=part)
    stream.stop(blocks=feedback())


@app.message(re.compile("(good morning|good evening)"))
def greeted(context: BoltContext, say: Say) -> None:
    """Repeat the greeting that matched."""
    say(f"{context['matches'][0]} to you")


@app.action("rate")
def rated(ack: Ack, body: dict[str, Any], client: WebClient) -> None:
    """Thank the person alone."""
    ack()
    text = f"You found it {body['actions'][0]['value']}."
    client.chat_postEphemeral(channel=body["channel"]["id"], user=body["user"]["id"], text=text)


@app.command("/ask-it")
def ask(ack: Ack, client: WebClient, command: dict[str, Any], respond: Respond) -> None:
    """Show the question to the person alone, or ask for one."""
    ack()
    if command["text"] == "":
        respond("Ask something.")
        return
    quote = {"type": "rich_text_quote", "elements": [{"type": "text", "text": command["text"]}]}
    blocks = [{"type": "rich_text", "elements": [quote]}]
    client.chat_postEphemeral(channel=command["channel_id"], user=command["user_id"], text="x", blocks=blocks)


@app.function("sum_up")
def sum_up(ack: Ack, inputs: dict[str, Any], client: WebClient, complete: Complete, fail: Fail) -> None:
    """Sum up a channel for a workflow."""
    ack()
    try:
        complete({"user_context": inputs["user_context"], "response": read(client, inputs["channel_id"])})
    except SlackApiError as error:
        fail(str(error))


app.assistant(assistant)
