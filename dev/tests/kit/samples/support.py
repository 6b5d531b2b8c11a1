"""The listeners of Slack's Python samples with an ``AsyncApp``: threads, plans, categories on *Home*, a modal."""

import os
import re
from typing import Any

from slack_bolt.async_app import (
    AsyncAck,
    AsyncApp,
    AsyncBoltContext,
    AsyncSay,
    AsyncSayStream,
    AsyncSetStatus,
    AsyncSetSuggestedPrompts,
)
from slack_sdk.models.messages.chunk import TaskUpdateChunk
from slack_sdk.web.async_client import AsyncWebClient

MANIFEST = {
    "features": {
        "app_home": {"home_tab_enabled": True},
        "assistant_view": {"assistant_description": "Helps"},
        "shortcuts": [{"name": "Report", "type": "global", "callback_id": "report"}],
    },
    "oauth_config": {
        "scopes": {
            "bot": [
                *("app_mentions:read", "assistant:write", "channels:history", "chat:write"),
                *("im:history", "im:read", "im:write", "reactions:read", "reactions:write", "users:read"),
            ]
        }
    },
    "settings": {
        "event_subscriptions": {
            "bot_events": [
                *("app_home_opened", "app_mention", "assistant_thread_started"),
                *("message.channels", "message.im"),
            ]
        }
    },
}
CATEGORIES = {"topic_password": "Password", "topic_access": "Access", "topic_other": "Something else"}
PROMPTS = [{"title": "Password", "message": "I forgot my password"}]
REFUSED: set[tuple[str, str]] = set()
"""Calls that Slack refuses, as the samples expect."""

sessions: set[tuple[str, str]] = set()
"""The threads in which the agent takes part."""
app = AsyncApp(token=os.environ["SLACK_BOT_TOKEN"])


def plain(text: str) -> dict[str, Any]:
    """Return a text object."""
    return {"type": "plain_text", "text": text}


async def agent(stream: Any, text: str, client: AsyncWebClient, channel: str, thread_ts: str) -> str:
    """Show a tool at work as a task, let it react to the thread, and answer."""
    task: dict[str, Any] = {"id": "001", "title": "Marking as solved"}
    await stream.append(chunks=[TaskUpdateChunk(**task, status="in_progress")])
    await client.reactions_add(channel=channel, timestamp=thread_ts, name="white_check_mark")
    await stream.append(chunks=[TaskUpdateChunk(**task, status="complete")])
    return f"Solved: {text}"


async def work(text: str, event: dict[str, Any], client: AsyncWebClient, say_stream: AsyncSayStream) -> None:
    """Answer in a thread by a stream with a plan."""
    channel, thread_ts = event["channel"], event.get("thread_ts") or event["ts"]
    stream = await say_stream(task_display_mode="plan")
    if (channel, thread_ts) in sessions:
        said = f"Once more: {text}"
    else:
        said = await agent(stream, text, client, channel, thread_ts)
    await stream.append(markdown_text=said)
    await stream.stop()
    sessions.add((channel, thread_ts))


@app.event("app_mention")
async def mentioned(
    client: AsyncWebClient,
    event: dict[str, Any],
    say: AsyncSay,
    say_stream: AsyncSayStream,
    set_status: AsyncSetStatus,
) -> None:
    """Answer a mention; ask back if it says nothing."""
    text = re.sub(r"<@[A-Z0-9]+>", "", event["text"]).strip()
    if text:
        await set_status(status="works…", loading_messages=["Turning it off and on…"])
        await work(text, event, client, say_stream)
    else:
        await say(text="What is wrong?", thread_ts=event.get("thread_ts") or event["ts"])


@app.event("message")
async def written(client: AsyncWebClient, event: dict[str, Any], say_stream: AsyncSayStream) -> None:
    """Answer direct messages, and what is said in a thread in which the agent takes part."""
    if event.get("bot_id") or event.get("subtype"):
        return
    if event["channel_type"] == "im" or (event["channel"], event.get("thread_ts")) in sessions:
        await work(event["text"], event, client, say_stream)


@app.event("assistant_thread_started")
async def started(client: AsyncWebClient, event: dict[str, Any]) -> None:
    """Suggest something in a new thread."""
    thread = event["assistant_thread"]
    where = {"channel_id": thread["channel_id"], "thread_ts": thread["thread_ts"]}
    await client.assistant_threads_setSuggestedPrompts(**where, title="How can I help?", prompts=PROMPTS)


@app.event("app_home_opened")
async def opened(
    client: AsyncWebClient,
    context: AsyncBoltContext,
    event: dict[str, Any],
    set_suggested_prompts: AsyncSetSuggestedPrompts,
) -> None:
    """Show the categories on *Home*, and prompts in the messages."""
    if event["tab"] == "messages":
        await set_suggested_prompts(title="How can I help?", prompts=PROMPTS)
        return
    buttons = [
        {"type": "button", "action_id": action, "text": plain(name), "value": name}
        for action, name in CATEGORIES.items()
    ]
    link = {"type": "button", "action_id": "connect", "text": plain("Connect"), "url": "https://example.com"}
    blocks = [
        {"type": "header", "text": plain("Help desk")},
        {"type": "actions", "elements": [*buttons, link]},
        {"type": "context", "elements": [{"type": "mrkdwn", "text": f"or ask <@{context.bot_user_id}>"}]},
    ]
    await client.views_publish(user_id=str(context.user_id), view={"type": "home", "blocks": blocks})


@app.action(re.compile("^topic_"))
async def topic(ack: AsyncAck, body: dict[str, Any], client: AsyncWebClient) -> None:
    """Open the form of a category."""
    await ack()
    await client.views_open(trigger_id=body["trigger_id"], view=form(body["actions"][0]["value"]))


@app.action("more")
async def more(ack: AsyncAck, body: dict[str, Any], client: AsyncWebClient) -> None:
    """Replace the form, if it is still as it was."""
    await ack()
    view = body["view"]
    await client.views_update(view_id=view["id"], hash=view["hash"], view=form("Something else"))


@app.action("connect")
async def connect(ack: AsyncAck) -> None:
    """Take notice of a click on a link."""
    await ack()


def form(category: str) -> dict[str, Any]:
    """Return the form with a chosen category, and a button for another."""
    named = [{"text": plain(name), "value": name} for name in CATEGORIES.values()]
    chosen = next(each for each in named if each["value"] == category)
    menu = {"type": "static_select", "action_id": "topic", "options": named, "initial_option": chosen}
    text = {"type": "plain_text_input", "action_id": "text", "multiline": True, "placeholder": plain("…")}
    place = {"type": "conversations_select", "action_id": "place", "response_url_enabled": True}
    button = {"type": "button", "action_id": "more", "text": plain("More")}
    return {
        "type": "modal",
        "callback_id": "reported",
        "title": plain("Report"),
        "submit": plain("Send"),
        "close": plain("Cancel"),
        "blocks": [
            {"type": "section", "text": {"type": "mrkdwn", "text": "Press *More*"}, "accessory": button},
            {"type": "input", "block_id": "topic", "label": plain("Category"), "element": menu},
            {"type": "input", "block_id": "text", "label": plain("What is wrong?"), "element": text},
            {"type": "input", "block_id": "place", "label": plain("Where is it told?"), "element": place},
        ],
    }


@app.view("reported")
async def reported(ack: AsyncAck, body: dict[str, Any], client: AsyncWebClient) -> None:
    """Repeat the report where the person wants it told, and answer in its thread."""
    await ack()
    values = body["view"]["state"]["values"]
    topic, text = values["topic"]["topic"]["selected_option"]["value"], values["text"]["text"]["value"]
    channel = values["place"]["place"]["selected_conversation"]
    said = await client.chat_postMessage(channel=channel, text=f"*{topic}*: {text}")
    await client.reactions_add(channel=channel, timestamp=said["ts"], name="eyes")
    await client.chat_postMessage(channel=channel, thread_ts=said["ts"], text=f"Solved: {text}")
