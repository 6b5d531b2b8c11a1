"""Serve ``assistant.*`` and ``agents.sessions.*``: what an agent shows of its work, and its search."""

import re

from surelane_dev.simulator.sessions import STATUSES
from surelane_dev.simulator.webapi.call import ApiError, MethodCall, invalid_arguments
from surelane_dev.simulator.workspace.model import JSON, Channel, Message

STOPPED = "agent_session_stopped"
NO_STOP = f"missing_{STOPPED}_event_subscription"
LONGEST_TITLE = 200
MOST_PROMPTS = 4
MOST_FOUND = 20


def set_status(call: MethodCall) -> JSON:
    """Set the bot's status in a thread. An empty status, a reply or two minutes end it."""
    channel, thread_ts = _thread(call)
    call.workspace.set_status(channel, thread_ts, call.text("status"))
    return {}


def set_title(call: MethodCall) -> JSON:
    channel, thread_ts = _thread(call)
    call.slack.sessions.rename(channel, thread_ts, call.text("title"))
    return {}


def set_suggested_prompts(call: MethodCall) -> JSON:
    """Check suggested prompts. The page does not show them."""
    call.joined_channel("channel_id")
    prompts = call.objects("prompts", "invalid_arguments")
    if not prompts or len(prompts) > MOST_PROMPTS:
        raise invalid_arguments(f"give between 1 and {MOST_PROMPTS} prompts [json-pointer:/prompts]")
    if not all(isinstance(prompt.get(name), str) for prompt in prompts for name in ("title", "message")):
        raise invalid_arguments("a prompt needs a title and a message [json-pointer:/prompts]")
    return {}


def set_session_status(call: MethodCall) -> JSON:
    """Set an agent session's status. The page offers *Stop* while it is ``processing``."""
    channel, thread_ts = _thread(call)
    status = next((status for status in STATUSES if status == call.text("status")), None)
    if status is None:
        raise invalid_arguments(f"status must be one of {', '.join(STATUSES)} [json-pointer:/status]")
    title = _title(call)
    session = call.slack.sessions.set_status(channel, thread_ts, status, title)
    answer: JSON = {"agent_status": session.status, "status": session.status, "title": session.title}
    if STOPPED not in call.slack.events:
        answer |= {"warning": NO_STOP, "response_metadata": {"warnings": [NO_STOP]}}
    return answer


def rename_session(call: MethodCall) -> JSON:
    channel, thread_ts = _thread(call)
    return {"title": call.slack.sessions.rename(channel, thread_ts, _title(call)).title}


def search(call: MethodCall) -> JSON:
    """Search the messages of public channels for the words of a query, the best first.

    A bot's token needs the ``action_token`` of a person's message.
    """
    workspace = call.workspace
    if workspace.action_tokens.get(call.text("action_token"), 0) < workspace.now():
        raise ApiError("invalid_action_token")
    words = set(re.findall(r"\w+", call.text("query").lower()))
    public = [channel for channel in workspace.channels.values() if not channel.is_im]
    found = [
        (len(words & set(re.findall(r"\w+", message.text.lower()))), message, channel)
        for channel in public
        for message in channel.messages.values()
        if not message.visible_to and (call.flag("include_bots") or not message.by_app)
    ]
    best = sorted((each for each in found if each[0]), key=lambda each: (-each[0], each[1].ts))
    limit = min(call.number("limit", MOST_FOUND), MOST_FOUND)
    messages = [_found(call, message, channel) for _, message, channel in best[:limit]]
    return {"results": {"messages": messages}, "response_metadata": {"next_cursor": ""}}


def _found(call: MethodCall, message: Message, channel: Channel) -> JSON:
    known = call.workspace.member(message.user)
    found: JSON = {"author_name": known[1].real_name if known else "", "author_user_id": message.user}
    found |= {"team_id": call.workspace.team_id, "channel_id": channel.id, "channel_name": channel.name}
    found |= {"message_ts": message.ts, "content": message.text, "is_author_bot": message.by_app}
    return found | {"permalink": call.permalink(message)}


def _title(call: MethodCall) -> str:
    title = call.text("title")
    if len(title) > LONGEST_TITLE:
        raise invalid_arguments(f"must be less than {LONGEST_TITLE + 1} characters [json-pointer:/title]")
    return title


def _thread(call: MethodCall) -> tuple[str, str]:
    channel = call.joined_channel("channel_id")
    message = channel.messages.get(call.text("thread_ts"))
    if message is None:
        raise ApiError("invalid_thread_ts")
    return channel.id, message.thread_ts or message.ts
