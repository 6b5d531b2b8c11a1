"""Read where Slack's payloads name things: in an event's envelope, an interaction, a command, and a job like them.

A value counts if it is a text that is not empty. No function raises. ``001-event.sql`` has the same rules, in functions
such as ``agent.event_channel``. ``tests/sql/test_payloads.py`` holds both to each other.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

Payload = Mapping[str, Any]

OWN = "surelane."
"""How the ids of the worker's own buttons and modals begin."""
ANSWERS = "surelane.answer"
"""The kind of clicks on those."""
SHARED = "is_ext_shared_channel"
"""The envelope's field that says whether several organizations share the channel (Slack Connect)."""
CHANNEL_ID = re.compile(r"[CDG][A-Z0-9]+", re.ASCII)
"""A job's payload may have another word where a channel's id is expected, such as ``slack``."""
MAX_KEY = 200
"""The most characters of a key that is stored as it is. A longer one is replaced by its hash."""

EDITS = {"message_changed": "message", "message_deleted": "previous_message"}
"""The subtypes of events about a message that a person edited or deleted, and where each has the message."""
_SORTS = {
    **dict.fromkeys(("im", "app_home", "D"), ".im"),
    **dict.fromkeys(("channel", "C"), ".channels"),
    **dict.fromkeys(("group", "G"), ".groups"),
    "mpim": ".mpim",
}
"""The sorts of channels, by ``channel_type``; where Slack leaves that out, by how the channel's id begins."""


def _paths(*paths: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(path.split(".")) for path in paths)


TEAM = _paths("team_id", "team.id", "team", "user.team_id")
"""The workspace that a payload names: of an interaction, the person's."""
OPENED = _paths("view.app_installed_team_id", "view.team_id")
"""Whose installation opened a view: in a shared channel, people of other workspaces use it, too."""
CHANNEL = _paths(
    "channel",
    "channel.id",
    "item.channel",
    "channel_id",
    "assistant_thread.channel_id",
    "container.channel_id",
)
USER = _paths("user", "user.id", "user_id", "message.user", "assistant_thread.user_id")
MESSAGE = _paths("ts", "item.ts", "message.ts", "original_message.ts", "message_ts")
THREAD = _paths(
    "thread_ts",
    "message.thread_ts",
    "original_message.thread_ts",
    "assistant_thread.thread_ts",
    "container.thread_ts",
)
ENTERPRISE = _paths("enterprise_id", "enterprise.id")
READ_BY_SQL = (
    *(*TEAM, *ENTERPRISE, *CHANNEL, *USER, *MESSAGE, *THREAD),
    *_paths("type", "command", "channel_type", "event_ts", "event_id", "event_time", SHARED, "agent"),
    *_paths("enterprise", "container.message_ts", "subtype", "message.subtype", "edited.ts"),
)
"""What the database reads of a payload, and ids. Not all of these are texts."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in Slack an event comes from, and where it is answered.

    Attributes:
        channel: the channel's id, if there is one.
        thread_ts: the thread's timestamp; the message's own if it began no thread yet.
        message_ts: the timestamp of the message that the event is about.
        since: a lookup of earlier answers starts at this timestamp.
        user: the person who caused the event.
        team: the person's workspace.
        workspace: the workspace whose installation the event is for (:func:`workspace_of`).
    """

    channel: str | None = None
    thread_ts: str | None = None
    message_ts: str | None = None
    since: str | None = None
    user: str | None = None
    team: str | None = None
    workspace: str | None = None

    @property
    def around(self) -> str | None:
        """The thread that a message or a click is in; ``None``: it is in the channel itself."""
        return None if self.thread_ts == self.message_ts else self.thread_ts


def place_of(payload: object) -> Place:
    """Return the place of a payload; what it does not name is ``None``."""
    inner = inner_event(payload)
    about = edited_message(inner) or inner
    message = text_at(about, MESSAGE)
    return Place(
        channel=text_at(inner, CHANNEL),
        thread_ts=text_at(about, THREAD) or message,
        message_ts=message,
        since=message or text_in(inner.get("event_ts")),
        user=text_at(inner, USER),
        # In a channel that organizations share, a message names its author's workspace.
        team=text_at(inner, _paths("user_team", "user.team_id")) or text_at(payload, TEAM),
        workspace=workspace_of(payload),
    )


def answered_at(payload: Payload) -> Place:
    """Return where an event is answered. A message that one person sees begins no thread.

    A button of an attachment comes with its message, unless one person sees it, or the app shows a link there.
    """
    place, attached = place_of(payload), payload.get("type") == "interactive_message"
    alone = attached and not ("original_message" in payload or "app_unfurl" in payload)
    if alone or object_in(payload.get("container")).get("is_ephemeral"):
        return replace(place, thread_ts=place.around)
    return place


def response_url_of(kind: str, payload: Payload) -> str | None:
    """Return the URL for answers to a command or an interaction, a secret. A modal may have a list of them.

    A job has none: its payload comes from its producer, who may not choose where the worker posts.
    """
    if not kind.startswith("slack."):
        return None
    first = object_in(first_in(payload.get("response_urls")))
    return text_in(payload.get("response_url")) or text_in(first.get("response_url"))


def inner_event(payload: object) -> dict[str, Any]:
    """Return the inner event of Slack's envelope; a payload without one is its own."""
    outer = object_in(payload)
    inner = outer.get("event")
    return inner if outer.get("type") == "event_callback" and isinstance(inner, dict) else outer


def subscription(event: Payload) -> str | None:
    """Return the name of an inner event's subscription: its type, and for messages the sort of channel."""
    name = text_in(event.get("type"))
    return f"message{_sort_of(event)}" if name == "message" else name


def is_direct(event: Payload) -> bool:
    """Return whether a message stands in a direct message with one person."""
    return _sort_of(event) == ".im"


def _sort_of(event: Payload) -> str:
    where = text_in(event.get("channel_type")) or (text_in(event.get("channel")) or "")[:1]
    return _SORTS.get(where, "")


def edit_of(event: Payload) -> str | None:
    """Return ``message_changed`` or ``message_deleted`` if an inner event is about an edit; ``None``: it is not.

    Slack replaces a deleted message that has replies by another one, a tombstone.
    """
    subtype = text_in(event.get("subtype"))
    if event.get("type") != "message" or subtype not in EDITS:
        return None
    gone = object_in(event.get("message")).get("subtype") == "tombstone"
    return "message_deleted" if gone else subtype


def edited_message(event: Payload) -> dict[str, Any]:
    """Return the message that was edited, as it is now, or deleted, as it was. It is empty for any other event.

    Slack delivers an edited mention once more: it is the message.
    """
    edit = edit_of(event)
    if edit is not None:
        return object_in(event.get(EDITS[edit]))
    again = event.get("type") in ("app_mention", "message") and isinstance(event.get("edited"), dict)
    return dict(event) if again else {}


def names_bot(payload: Payload) -> bool:
    """Return whether a message mentions the bot of the installation to which Slack reports it."""
    message, bot = inner_event(payload), text_in(authorization_of(payload).get("user_id"))
    said = text_in((edited_message(message) or message).get("text")) or ""
    return message.get("type") == "app_mention" or bool(bot and (f"<@{bot}>" in said or f"<@{bot}|" in said))


def said_in(message: Payload) -> tuple[object, list[object]]:
    """Return the text and the ids of the files of a message: what an edit changes."""
    files = message.get("files")
    shared = files if isinstance(files, list) else ()
    return message.get("text"), [object_in(file).get("id") for file in shared]


def kind_of(payload: object) -> str:
    """Return the kind: ``slack.app_mention``, ``slack.message.im``, ``slack.command.deploy``, ..."""
    inner = inner_event(payload)
    name = edit_of(inner) or subscription(inner)
    if own_id(inner) is not None:
        return ANSWERS
    if name is None:
        command = text_in(inner.get("command"))
        if command is None:
            return "event"
        name = f"command.{command.lstrip('/')}"
    return f"slack.{name}"[:200]


def own_id(interaction: Payload) -> str | None:
    """Return the id of the worker's own button or modal; ``None``: it is a team's."""
    match interaction.get("type"):
        case "block_actions":
            found = text_at(first_in(interaction.get("actions")), (("action_id",),))
        case "view_submission":
            found = text_at(interaction, (("view", "callback_id"),))
        case _:
            return None
    return found if found is not None and found.startswith(OWN) else None


def key_of(payload: object) -> str | None:
    """Return the natural key; ``None``: the database makes one of the content.

    Slack's ``event_id`` is the key. Commands and interactions have none: theirs is a hash of ``trigger_id``, which
    names one click or command. The hash keeps it out of logs: until it expires, a ``trigger_id`` is a credential.
    """
    outer = object_in(payload)
    key = text_in(outer.get("event_id"))
    if key is not None:
        return key if len(key) <= MAX_KEY else f"sha256:{_hash(key)}"
    trigger = text_in(outer.get("trigger_id"))
    return None if trigger is None else f"trigger:{_hash(trigger)}"


def is_shared(payload: Payload) -> bool:
    """Return whether an event is of a channel that several organizations share (Slack Connect)."""
    return payload.get(SHARED) is True


def authorization_of(payload: Payload) -> dict[str, Any]:
    """Return the installation to which Slack reports an event. It is empty for commands and interactions."""
    return object_in(first_in(payload.get("authorizations")))


def workspace_of(payload: object) -> str | None:
    """Return the workspace whose installation an event is for; ``None`` where the payload names none.

    It is the one that Slack reports to, that opened the view, or that posted the message with the button. In a channel
    that organizations share, the payload's own ``team`` may be another: that of the person.
    """
    outer = object_in(payload)
    named = (
        text_in(authorization_of(outer).get("team_id")),
        *(text_at(outer, (path,)) for path in OPENED),
        _poster_of(outer),
    )
    # Slack names an organization as a team in some payloads.
    return next((team for team in named if team is not None and not team.startswith("E")), None) or text_at(
        outer, TEAM
    )


def _poster_of(interaction: Payload) -> str | None:
    """Return whose installation posted the message that a person uses; ``None``: the app did not post it."""
    named = interaction.get("message", interaction.get("original_message"))
    message, app = object_in(named), text_in(interaction.get("api_app_id"))
    ours = app is not None and message.get("app_id") == app
    used = interaction.get("type") in ("block_actions", "block_suggestion", "interactive_message")
    # A link that the app shows stands in another one's message.
    if used and "app_id" not in message and "app_unfurl" not in interaction:
        ours = text_in(message.get("bot_id")) is not None
    return text_in(message.get("team")) if ours else None


def reporter_of(payload: Payload) -> tuple[str | None, str | None, bool]:
    """Return whose installation an event is for: organization, workspace, and whether it is the former's.

    The Events API names it in ``authorizations``. Views and messages name the workspace that made them. Commands and
    other interactions name the person's, by fields or by objects.
    """
    named = authorization_of(payload) or payload
    made = text_at(payload, OPENED) or _poster_of(payload) if named is payload else None
    team, enterprise = made or text_at(named, TEAM[:2]), text_at(named, ENTERPRISE)
    if team is not None and team.startswith("E"):  # Slack names an organization as a team in some events
        return team, None, True
    wide = named.get("is_enterprise_install")
    return enterprise, team, wide is True or wide == "true"


def text_at(value: object, paths: tuple[tuple[str, ...], ...]) -> str | None:
    """Return the text at the first path that has one."""
    for path in paths:
        found = value
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, str) and found:
            return found
    return None


def object_in(value: object) -> dict[str, Any]:
    """Return an object as it is, and anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def text_in(value: object) -> str | None:
    """Return a text that is not empty as it is, and anything else as ``None``."""
    return value if isinstance(value, str) and value else None


def first_in(value: object) -> object:
    """Return the first entry of a list; ``None`` where there is none."""
    return value[0] if isinstance(value, list) and value else None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
