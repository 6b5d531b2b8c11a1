"""The listeners of bolt-python-support-agent, an ``AsyncApp``: threads, plans, categories on *Home*, a modal."""

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
WAITING = ["Turning it off and on…", "Finding the cable…"]
sessions: set[tuple[str, str]] = set()
"""The threads in which the agent takes part."""

REFUSED: set[tuple[str, str]] = set()
"""Calls that Slack refuses, as the sample expects."""

app = AsyncApp(token=os.environ["SLACK_BOT_TOKEN"])


def plain(text: str) -> dict[str, Any]:
    """Return a text object."""
    return {"type": "plain_text", "text": text}


def feedback() -> list[dict[str, Any]]:
    """Return the buttons below an answer."""
    good, bad = ({"text": plain(text), "value": text} for text in ("good", "bad"))
    buttons = {
        "type": "feedback_buttons",
        "action_id": "rate",
        "positive_button": good,
        "negative_button": bad,
    }
    return [{"type": "context_actions", "elements": [buttons]}]


async def agent(stream: Any, text: str, client: AsyncWebClient, channel: str, thread_ts: str) -> str:
    """Show a tool at work as a task, let it react to the thread, and answer."""
    task: dict[str, Any] = {"id": "001", "title": "Marking as solved"}
    await stream.append(chunks=[TaskUpdateChunk(**task, status="in_progress")])
    await client.reactions_add(channel=channel, timestamp=thread_ts, name="white_check_mark")
    await stream.append(chunks=[TaskUpdateChunk(**task, status="complete")])
    return f"Solved: {text}"


async def work(
    text: str,
    event: dict[str, Any],
    client: AsyncWebClient,
    say_stream: AsyncSayStream,
    set_status: AsyncSetStatus,
) -> None:
    """Answer in a thread by a stream with a plan."""
    channel, thread_ts = event["channel"], event.get("thread_ts") or event["ts"]
    if thread_ts == event["ts"]:
        await client.reactions_add(channel=channel, timestamp=event["ts"], name="eyes")
    await set_status(status="works…", loading_messages=WAITING)
    stream = await say_stream(task_display_mode="plan")
    if (channel, thread_ts) in sessions:
        said = f"Once more: {text}"
    else:
        said = await agent(stream, text, client, channel, thread_ts)
    await stream.append(markdown_text=said)
    await stream.stop(blocks=feedback())
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
        await work(text, event, client, say_stream, set_status)
    else:
        await say(text="What is wrong?", thread_ts=event.get("thread_ts") or event["ts"])


@app.event("message")
async def written(
    client: AsyncWebClient,
    event: dict[str, Any],
    say_stream: AsyncSayStream,
    set_status: AsyncSetStatus,
) -> None:
    """Answer direct messages, and what is said in a thread in which the agent takes part."""
    if event.get("bot_id") or event.get("subtype"):
        return
    if event["channel_type"] == "im" or (event["channel"], event.get("thread_ts")) in sessions:
        await work(event["text"], event, client, say_stream, set_status)


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
        {"type": "section", "text": {"type": "mrkdwn", "text": "*Choose* a category"}},
        {"type": "actions", "elements": [*buttons, link]},
        {"type": "context", "elements": [{"type": "mrkdwn", "text": f"or ask <@{context.bot_user_id}>"}]},
    ]
    await client.views_publish(user_id=str(context.user_id), view={"type": "home", "blocks": blocks})


@app.action(re.compile("^topic_"))
async def topic(ack: AsyncAck, body: dict[str, Any], client: AsyncWebClient) -> None:
    """Open the form of a category."""
    await ack()
    named = [{"text": plain(name), "value": name} for name in CATEGORIES.values()]
    chosen = next(each for each in named if each["value"] == body["actions"][0]["value"])
    menu = {
        "type": "static_select",
        "action_id": "topic",
        "options": named,
        "initial_option": chosen,
    }
    field = {"type": "plain_text_input", "action_id": "text", "multiline": True, "placeholder": plain("…")}
    view = {
        "type": "modal",
        "callback_id": "reported",
        "title": plain("Report"),
        "submit": plain("Send"),
        "close": plain("Cancel"),
        "blocks": [
            {"type": "input", "block_id": "topic", "label": plain("Category"), "element": menu},
            {"type": "input", "block_id": "text", "label": plain("What is wrong?"), "element": field},
        ],
    }
    await client.views_open(trigger_id=body["trigger_id"], view=view)


@app.action("connect")
async def connect(ack: AsyncAck) -> None:
    """Take notice of a click on a link."""
    await ack()


@app.action("rate")
async def rated(
    ack: AsyncAck, body: dict[str, Any], client: AsyncWebClient, context: AsyncBoltContext
) -> None:
    """Thank the person alone."""
    await ack()
    await client.chat_postEphemeral(
        channel=str(context.channel_id),
        user=str(context.user_id),
        thread_ts=body["message"]["ts"],
        text=f"You found it {body['actions'][0]['value']}.",
    )


@app.view("reported")
async def reported(
    ack: AsyncAck, body: dict[str, Any], client: AsyncWebClient, context: AsyncBoltContext
) -> None:
    """Open direct messages, repeat the report there, and answer in its thread."""
    await ack()
    values = body["view"]["state"]["values"]
    topic, text = values["topic"]["topic"]["selected_option"]["value"], values["text"]["text"]["value"]
    channel = (await client.conversations_open(users=[str(context.user_id)]))["channel"]["id"]
    said = f"*{topic}*: {text}"
    thread_ts = (await client.chat_postMessage(channel=channel, text=said))["ts"]
    await client.assistant_threads_setStatus(
        channel_id=channel, thread_ts=thread_ts, status="works…", loading_messages=WAITING
    )
    await client.reactions_add(channel=channel, timestamp=thread_ts, name="eyes")
    stream = await client.chat_stream(
        channel=channel,
        thread_ts=thread_ts,
        recipient_team_id=context.team_id,
        recipient_user_id=context.user_id,
    )
    await stream.append(markdown_text=f"Solved: {text}")
    await stream.stop(blocks=feedback())
