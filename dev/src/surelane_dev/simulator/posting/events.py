"""Make the events of Slack's Events API from changes of the workspace."""

import base64
import json
import re
from collections.abc import Collection, Iterator
from html import unescape
from secrets import choice

from surelane_dev.simulator.workspace.model import (
    JSON,
    Change,
    Channel,
    Deleted,
    Edited,
    Message,
    Posted,
    Reacted,
)
from surelane_dev.simulator.workspace.shapes import message_json, present
from surelane_dev.simulator.workspace.workspace import Workspace

_MENTION = re.compile(r"<@([A-Z0-9]+)>")
_URL = re.compile(r"https?://([\w.-]+)[^\s<>|]*")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def new_id(prefix: str) -> str:
    """Return a new id in Slack's alphabet, such as ``Ev0A1B2C3D4``."""
    return prefix + "0" + "".join(choice(_LETTERS) for _ in range(9))


def events_of(workspace: Workspace, change: Change, subscriptions: Collection[str]) -> Iterator[JSON]:
    """Return the inner events that Slack sends for a change to an app with these subscriptions.

    A channel without the bot makes no events. One message may make two events: ``app_mention`` and
    ``message.channels``.
    """
    match change:
        case Posted(message) if message.visible_to is None:
            yield from _posted(workspace, message, subscriptions)
        case Edited(message, previous):
            yield from _changed(workspace, message, previous, subscriptions)
        case Deleted(message, tombstone) if message.visible_to is None:
            yield from _deleted(workspace, message, tombstone, subscriptions)
        case Reacted(message, user, name, added):
            yield from _reacted(workspace, message, user, name, added, subscriptions)
        case _:
            return


def envelope(workspace: Workspace, inner: JSON, *, wide: bool = False) -> JSON:
    """Return the outer event that Slack wraps around an inner one, for the installation of a workspace.

    Of a shared channel it names the author's workspace, too. ``wide``: the organization has installed the app.
    """
    channel = workspace.channels.get(inner.get("channel") or inner.get("item", {}).get("channel"))
    authorization: JSON = {"enterprise_id": workspace.enterprise_id, "team_id": workspace.team_id}
    authorization |= {"user_id": workspace.bot.id, "is_bot": True, "is_enterprise_install": wide}
    outer: JSON = {"token": "simulated-verification-token", "type": "event_callback", "event": inner}
    outer |= {"team_id": inner.get("user_team") or workspace.team_id, "context_team_id": workspace.team_id}
    outer |= {"context_enterprise_id": workspace.enterprise_id, "api_app_id": workspace.app_id}
    outer |= {"event_id": new_id("Ev"), "event_time": int(float(inner["event_ts"]))}
    outer |= {"authorizations": [authorization], "event_context": _event_context(workspace, inner)}
    return outer | {"is_ext_shared_channel": channel is not None and channel.shared}


def rich_text(text: str) -> list[JSON]:
    """Return the block that Slack makes of a person's text."""
    parts = _MENTION.split(text)
    elements = [
        {"type": "user", "user_id": part} if at % 2 else {"type": "text", "text": unescape(part)}
        for at, part in enumerate(parts)
        if part
    ]
    section = {"type": "rich_text_section", "elements": elements}
    return [{"type": "rich_text", "block_id": new_id("b")[:5], "elements": [section]}]


def links_of(workspace: Workspace, text: str) -> list[JSON]:
    """Return the links in a text that the app shows, each with its domain as the app's settings name it."""
    return [
        {"url": found[0], "domain": domain}
        for found in _URL.finditer(unescape(text))
        for domain in workspace.unfurl_domains
        if f".{found[1]}".endswith(f".{domain}")
    ]


def mentions(text: str) -> list[str]:
    """Return the ids of the users that a text mentions."""
    return _MENTION.findall(text)


def _heard(workspace: Workspace, channel: Channel, subscriptions: Collection[str]) -> bool:
    name = "message.im" if channel.is_im else "message.channels"
    return name in subscriptions and workspace.bot.id in channel.members


def _posted(workspace: Workspace, message: Message, subscriptions: Collection[str]) -> Iterator[JSON]:
    channel = workspace.channels[message.channel]
    body = message_json(workspace, message, metadata=True) | {"channel": channel.id, "event_ts": message.ts}
    search = {} if message.by_app else {"action_token": workspace.new_action_token()}
    if _mentioned(workspace, message, subscriptions):
        yield body | search | {"type": "app_mention"}
    if _heard(workspace, channel, subscriptions):
        more: JSON = {"channel_type": _channel_type(channel)}
        if channel.is_im:
            seen = workspace.looked_at.get(message.user) if "app_context_changed" in subscriptions else None
            more |= search | ({"app_context": seen} if seen else {})
        yield body | more
    links = [] if message.by_app else links_of(workspace, message.text)
    if links and "link_shared" in subscriptions:
        where = {"channel": channel.id, "message_ts": message.ts, "thread_ts": message.thread_ts}
        shared = {
            "type": "link_shared",
            "user": message.user,
            "links": links,
            "source": "conversations_history",
        }
        shared |= {"unfurl_id": f"{channel.id}:{message.ts}-{new_id('')}", "event_ts": workspace.next_ts()}
        yield present(where) | shared | {"is_bot_user_member": workspace.bot.id in channel.members}


def _mentioned(workspace: Workspace, message: Message, subscriptions: Collection[str]) -> bool:
    channel = workspace.channels[message.channel]
    in_reach = workspace.bot.id in channel.members and not channel.is_im
    mentioned = workspace.bot.id in mentions(message.text) and not message.by_app
    return mentioned and in_reach and "app_mention" in subscriptions


def _changed(
    workspace: Workspace, message: Message, previous: Message, subscriptions: Collection[str]
) -> Iterator[JSON]:
    """Yield the events of an edit. A mention that a person edits is sent again, under another event id."""
    channel = workspace.channels[message.channel]
    if message.text != previous.text and _mentioned(workspace, message, subscriptions):
        edited = {"type": "app_mention", "channel": channel.id, "event_ts": message.edited_ts}
        token = {"action_token": workspace.new_action_token()}
        yield message_json(workspace, message, metadata=True) | token | edited
    if _heard(workspace, channel, subscriptions) and message.visible_to is None:
        how = {"subtype": "message_changed", "message": message_json(workspace, message, metadata=True)}
        yield _hidden(workspace, channel, previous, how, str(message.edited_ts))


def _deleted(
    workspace: Workspace, message: Message, tombstone: Message | None, subscriptions: Collection[str]
) -> Iterator[JSON]:
    """Yield the event of a deletion. A message that has replies is changed into a tombstone."""
    channel = workspace.channels[message.channel]
    if _heard(workspace, channel, subscriptions):
        how: JSON = {"subtype": "message_deleted", "deleted_ts": message.ts}
        if tombstone is not None:
            how = {"subtype": "message_changed", "message": message_json(workspace, tombstone)}
        yield _hidden(workspace, channel, message, how, workspace.next_ts())


def _hidden(workspace: Workspace, channel: Channel, previous: Message, how: JSON, ts: str) -> JSON:
    """Return the event of an edit or a deletion."""
    before = message_json(workspace, previous, metadata=True)
    where = {"channel": channel.id, "channel_type": _channel_type(channel)}
    return {
        "type": "message",
        **how,
        "previous_message": before,
        **where,
        "hidden": True,
        "ts": ts,
        "event_ts": ts,
    }


def _reacted(
    workspace: Workspace, message: Message, user: str, name: str, added: bool, subscriptions: Collection[str]
) -> Iterator[JSON]:
    kind = "reaction_added" if added else "reaction_removed"
    if kind in subscriptions and workspace.bot.id in workspace.channels[message.channel].members:
        item = {"type": "message", "channel": message.channel, "ts": message.ts}
        event = {"type": kind, "user": user, "reaction": name, "item": item, "item_user": message.user}
        yield event | {"event_ts": workspace.next_ts()}


def _channel_type(channel: Channel) -> str:
    return "im" if channel.is_im else "channel"


def _event_context(workspace: Workspace, inner: JSON) -> str:
    channel = inner.get("channel") or inner.get("item", {}).get("channel")
    facts = present({"et": inner["type"], "tid": workspace.team_id, "aid": workspace.app_id, "cid": channel})
    return "4-" + base64.b64encode(json.dumps(facts, separators=(",", ":")).encode()).decode()
