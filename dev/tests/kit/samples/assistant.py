"""The listeners of bolt-python-assistant-template: an assistant that streams, and feedback buttons."""

import os
from collections.abc import Iterator
from typing import Any

from slack_bolt import Ack, App, Assistant, BoltContext, Say, SetStatus, SetSuggestedPrompts
from slack_sdk import WebClient
from slack_sdk.models.blocks import ContextActionsBlock, FeedbackButtonsElement
from slack_sdk.models.blocks.basic_components import FeedbackButtonObject
from slack_sdk.models.messages.chunk import MarkdownTextChunk, TaskUpdateChunk

MANIFEST = {
    "features": {"assistant_view": {"assistant_description": "Answers"}},
    "oauth_config": {"scopes": {"bot": ["app_mentions:read", "assistant:write", "chat:write", "im:history"]}},
    "settings": {
        "event_subscriptions": {"bot_events": ["app_mention", "assistant_thread_started", "message.im"]}
    },
}
WAITING = ["Counting sheep…", "Asking the cat…"]
PLAN = "Show me the steps"

REFUSED: set[tuple[str, str]] = set()
"""Calls that Slack refuses, as the sample expects."""

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


@assistant.thread_started
def started(say: Say, set_suggested_prompts: SetSuggestedPrompts) -> None:
    """Greet, and suggest."""
    say("What is it?")
    set_suggested_prompts(prompts=[{"title": "Steps", "message": PLAN}, {"title": "Joke", "message": "Joke"}])


@assistant.user_message
def asked(
    client: WebClient, context: BoltContext, payload: dict[str, Any], say: Say, set_status: SetStatus
) -> None:
    """Stream an answer: of text, or of tasks that change."""
    try:
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
        stream.append(
            chunks=[
                MarkdownTextChunk(text="Well. "),
                TaskUpdateChunk(**first, status="in_progress", details="- left\n- right"),
                TaskUpdateChunk(**second, status="pending"),
            ]
        )
        stream.append(chunks=[TaskUpdateChunk(**first, status="complete", output="Nothing is there")])
        stream.stop(
            chunks=[TaskUpdateChunk(**second, status="complete"), MarkdownTextChunk(text="That is all.")]
        )
    except Exception as error:  # noqa: BLE001 - as the sample
        say(f"It failed: {error}")


@app.event("app_mention")
def mentioned(client: WebClient, event: dict[str, Any], say: Say) -> None:
    """Stream an answer in the thread."""
    try:
        where: dict[str, Any] = {
            "channel": event["channel"],
            "thread_ts": event.get("thread_ts") or event["ts"],
        }
        client.assistant_threads_setStatus(
            channel_id=where["channel"],
            thread_ts=where["thread_ts"],
            status="thinks…",
            loading_messages=WAITING,
        )
        person: dict[str, Any] = {
            "recipient_team_id": event.get("team"),
            "recipient_user_id": event.get("user"),
        }
        stream = client.chat_stream(**where, **person)
        for part in model(event["text"]):
            stream.append(markdown_text=part)
        stream.stop(blocks=feedback())
    except Exception as error:  # noqa: BLE001 - as the sample
        say(f"It failed: {error}")


@app.action("rate")
def rated(ack: Ack, body: dict[str, Any], client: WebClient) -> None:
    """Thank the person alone."""
    ack()
    good = body["actions"][0]["value"] == "good"
    client.chat_postEphemeral(
        channel=body["channel"]["id"],
        user=body["user"]["id"],
        thread_ts=body["message"]["ts"],
        text="Thank you." if good else "A new chat may help.",
    )


app.assistant(assistant)
