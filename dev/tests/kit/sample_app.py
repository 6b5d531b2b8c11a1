"""The listeners of Slack's public samples for Python, in one ``AsyncApp``: assistant, streams, *Home*, function."""

import os
import re
from typing import Any

from slack_bolt.async_app import (
    AsyncAck,
    AsyncApp,
    AsyncAssistant,
    AsyncBoltContext,
    AsyncGetThreadContext,
    AsyncSay,
    AsyncSayStream,
    AsyncSetStatus,
    AsyncSetSuggestedPrompts,
)
from slack_bolt.context.complete.async_complete import AsyncComplete
from slack_bolt.context.fail.async_fail import AsyncFail
from slack_sdk.errors import SlackApiError
from slack_sdk.models.messages.chunk import MarkdownTextChunk, TaskUpdateChunk
from slack_sdk.web.async_client import AsyncWebClient

MANIFEST = {
    "features": {
        "app_home": {"home_tab_enabled": True},
        "assistant_view": {"assistant_description": "Answers"},
    },
    "oauth_config": {
        "scopes": {
            "bot": [
                *("app_mentions:read", "assistant:write", "channels:history", "channels:join", "chat:write"),
                *("im:history", "im:write", "reactions:write"),
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
SUMMARY = "Sum up the channel"
REFUSED = {("conversations.history", "not_in_channel"), ("conversations.history", "channel_not_found")}
"""Calls that Slack refuses, as the samples expect."""

app = AsyncApp(token=os.environ["SLACK_BOT_TOKEN"])
assistant = AsyncAssistant()


def plain(text: str) -> dict[str, Any]:
    """Return a text object."""
    return {"type": "plain_text", "text": text}


async def read(client: AsyncWebClient, channel: str) -> str:
    """Return what people wrote in a channel."""
    history = await client.conversations_history(channel=channel, limit=50)
    return " ".join(each["text"] for each in reversed(history["messages"]) if each.get("user"))


@assistant.thread_started
async def started(
    say: AsyncSay, get_thread_context: AsyncGetThreadContext, set_suggested_prompts: AsyncSetSuggestedPrompts
) -> None:
    """Greet, and suggest what the person may ask about the channel that they look at."""
    context = await get_thread_context()
    await say(f"You look at {context.channel_id if context else 'nothing'}")
    await set_suggested_prompts(prompts=[{"title": "A summary", "message": SUMMARY}])


@assistant.user_message
async def asked(
    client: AsyncWebClient,
    context: AsyncBoltContext,
    get_thread_context: AsyncGetThreadContext,
    payload: dict[str, Any],
    say: AsyncSay,
) -> None:
    """Sum up a channel, which it may have to join, or stream an answer with tasks that change."""
    if payload["text"] == SUMMARY:
        about = await get_thread_context()
        channel = "" if about is None else str(about.channel_id)
        try:
            said = await read(client, channel)
        except SlackApiError as error:
            if error.response["error"] != "not_in_channel":
                raise
            await client.conversations_join(channel=channel)
            said = await read(client, channel)
        await say(said)
        return
    where = {"channel": payload["channel"], "thread_ts": payload["thread_ts"]}
    person = {"recipient_team_id": str(context.team_id), "recipient_user_id": str(context.user_id)}
    stream = await client.chat_stream(**where, **person)
    task: dict[str, Any] = {"id": "1", "title": "Look"}
    working = TaskUpdateChunk(**task, status="in_progress", details="- left\n- right")
    await stream.append(chunks=[MarkdownTextChunk(text="Well. "), working])
    done = TaskUpdateChunk(**task, status="complete", output="Nothing is there")
    await stream.stop(chunks=[done, MarkdownTextChunk(text="That is all.")])


@app.event("app_mention")
async def mentioned(
    client: AsyncWebClient, event: dict[str, Any], say_stream: AsyncSayStream, set_status: AsyncSetStatus
) -> None:
    """Answer in a thread by a stream with a plan and feedback buttons."""
    await set_status(status="works…", loading_messages=["Turning it off and on…"])
    await client.reactions_add(channel=event["channel"], timestamp=event["ts"], name="eyes")
    stream = await say_stream(task_display_mode="plan")
    await stream.append(markdown_text=f"Solved: {event['text'].split()[-1]}")
    good, bad = ({"text": plain(text), "value": text} for text in ("good", "bad"))
    buttons = {
        "type": "feedback_buttons",
        "action_id": "rate",
        "positive_button": good,
        "negative_button": bad,
    }
    await stream.stop(blocks=[{"type": "context_actions", "elements": [buttons]}])


@app.action("rate")
async def rated(ack: AsyncAck, body: dict[str, Any], client: AsyncWebClient) -> None:
    """Thank the person alone."""
    await ack()
    where = {"channel": body["channel"]["id"], "user": body["user"]["id"]}
    await client.chat_postEphemeral(**where, text=f"You found it {body['actions'][0]['value']}.")


@app.message(re.compile("(good morning|good evening)"))
async def greeted(context: AsyncBoltContext, say: AsyncSay) -> None:
    """Repeat the greeting that matched."""
    await say(f"{context['matches'][0]} to you")


@app.event("app_home_opened")
async def opened(client: AsyncWebClient, event: dict[str, Any]) -> None:
    """Show a category on *Home*."""
    if event["tab"] == "home":
        button = {"type": "button", "action_id": "topic", "text": plain("Access"), "value": "access"}
        blocks = [{"type": "header", "text": plain("Help desk")}, {"type": "actions", "elements": [button]}]
        await client.views_publish(user_id=event["user"], view={"type": "home", "blocks": blocks})


@app.action("topic")
async def topic(ack: AsyncAck, body: dict[str, Any], client: AsyncWebClient) -> None:
    """Open the form of a category."""
    await ack()
    await client.views_open(trigger_id=body["trigger_id"], view=form("What is wrong?"))


@app.action("more")
async def more(ack: AsyncAck, body: dict[str, Any], client: AsyncWebClient) -> None:
    """Replace the form, if it is still as it was."""
    await ack()
    view = body["view"]
    await client.views_update(view_id=view["id"], hash=view["hash"], view=form("What else?"))


def form(label: str) -> dict[str, Any]:
    """Return the form, with a button for another one."""
    text = {"type": "plain_text_input", "action_id": "text"}
    more = {"type": "button", "action_id": "more", "text": plain("More")}
    blocks = [
        {"type": "section", "text": plain("Press More"), "accessory": more},
        {"type": "input", "block_id": "text", "label": plain(label), "element": text},
    ]
    return {
        "type": "modal",
        "callback_id": "reported",
        "title": plain("Report"),
        "submit": plain("Send"),
        "blocks": blocks,
    }


@app.view("reported")
async def reported(ack: AsyncAck, body: dict[str, Any], client: AsyncWebClient) -> None:
    """Repeat the report to the person."""
    await ack()
    text = body["view"]["state"]["values"]["text"]["text"]["value"]
    channel = (await client.conversations_open(users=[body["user"]["id"]]))["channel"]["id"]
    await client.chat_postMessage(channel=channel, text=f"Reported: {text}")


@app.function("sum_up")
async def sum_up(
    ack: AsyncAck, inputs: dict[str, Any], client: AsyncWebClient, complete: AsyncComplete, fail: AsyncFail
) -> None:
    """Sum up a channel for a workflow."""
    await ack()
    try:
        await complete({"user": inputs["user"], "response": await read(client, inputs["channel_id"])})
    except SlackApiError as error:
        await fail(str(error))


app.assistant(assistant)
