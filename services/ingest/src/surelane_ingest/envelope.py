"""Read Slack's payloads: pure functions to a value. None of them raises.

The database derives an event's kind and key when it stores it (``agent.event_kind``, ``agent.event_item_key``).
:mod:`surelane.slack` repeats that for logs, metrics and traces, which name an event before it is stored.
"""

import json
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl
from uuid import uuid4

from surelane.slack import (
    MAX_KEY,
    Payload,
    authorization_of,
    edit_of,
    edited_message,
    is_direct,
    is_shared,
    key_of,
    kind_of,
    names_bot,
    object_in,
    reporter_of,
    said_in,
    subscription,
    text_in,
    workspace_of,
)
from surelane_ingest.json_text import Json, NotJsonError, read_json

MAX_FORM_FIELDS = 100
_PLAIN_SUBTYPES = (None, "file_share", "thread_broadcast", "me_message")
_BOT_SUBTYPES = ("bot_message", "slackbot_response")
_SLACKBOT = "USLACKBOT"
_REMOVALS = ("app_uninstalled", "tokens_revoked")
_REMOVAL_FROM_TEAM = "app_uninstalled_team"
"""An organization removed an app, ours or another one, from one of its workspaces."""
_TOLD_ALWAYS = {*_REMOVALS, _REMOVAL_FROM_TEAM}
"""Event types that ingest reads itself, whether or not they are stored."""
_MEMBERSHIP = ("member_joined_channel", "member_left_channel")
_ALSO_MENTIONS = frozenset({"message.channels", "message.groups", "message.mpim"})


@dataclass(frozen=True, slots=True)
class Challenge:
    """Slack checks that the URL is ours. The answer is the challenge."""

    challenge: str


@dataclass(frozen=True, slots=True)
class Take:
    """An event to store.

    Attributes:
        key: its natural key, which is the same for each retry; ``None`` where only the database can derive it.
        body: JSON text that PostgreSQL can hold; ``payload`` is its value.
        altered: something PostgreSQL cannot hold was replaced.
        waits: it is a command or an interaction, so a handler may answer it in the HTTP response.
        by_person: a person wrote the message, or no person did; ``None``: it is no message.
    """

    kind: str
    key: str | None
    body: str
    altered: bool = False
    waits: bool = False
    payload: Payload | None = field(default=None, compare=False, repr=False)
    by_person: bool | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Ignore:
    """A sound request that is acknowledged and not stored.

    Attributes:
        reason: one word, for logs and metrics.
        untaken: the type of an event that is not stored because of its type.
        payload: what Slack sent; ``None``: nothing that a person may ask for.
    """

    reason: str
    untaken: str | None = field(default=None, compare=False)
    payload: Payload | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RateLimited:
    """Slack drops events of a workspace that has too many. ``minute`` is when, in seconds since the epoch."""

    team: str
    minute: int


@dataclass(frozen=True, slots=True)
class Malformed:
    """Sent by Slack, but never storable, so Slack need not try again. ``reason`` quotes nothing of it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Removed:
    """Slack says that an installation, or some of its tokens, are gone.

    Attributes:
        users: the people whose tokens are gone, with ``""`` for the bot; ``None``: all, as the app was removed.
        at: when, in seconds since the epoch; ``None`` where Slack does not say.
        then: what else becomes of the event.
        from_team: the workspace's organization removed the app from it, and keeps its own installation.
    """

    enterprise_id: str | None
    team_id: str | None
    is_enterprise_install: bool
    users: tuple[str, ...] | None
    at: int | None
    then: Take | Ignore
    from_team: bool = False


Envelope = Challenge | Take | Ignore | RateLimited | Malformed | Removed


class Subscriptions:
    """The event types to take, by the names in Slack's app settings (``app_mention``, ``message.im``, ...)."""

    def __init__(
        self, types: frozenset[str], *, merge_mentions: bool = True, own: bool = False, bots: bool = False
    ) -> None:
        """Say what is taken.

        Args:
            types: the subscriptions to take.
            merge_mentions: a mention and its channel message are one event.
            own: the app's own events are taken.
            bots: messages that no person wrote are taken.
        """
        self._types = types
        self._own = own
        self._bots = bots
        also = _ALSO_MENTIONS & types if merge_mentions else frozenset()
        self._delivered_twice = {"app_mention", *also} if also and "app_mention" in types else set()

    def reason_to_ignore(self, envelope: Payload, event: Payload) -> str | None:
        """Return why an event is not taken, in one word; ``None``: it is taken."""
        name, edit = subscription(event), edit_of(event)
        if self._types.isdisjoint({name, edit}):
            return "type"
        about = event if edit is None else edited_message(event)
        own = _is_own(envelope, about, str(name))
        if own and not self._own:
            return "own"
        if edit is None and name != "app_mention" and event.get("type") != "message":
            return None
        to_bot = is_direct(event) or names_bot(envelope)  # other apps cannot write there
        bots = own or self._bots or (_from_person(about) and to_bot)
        reason = _reason_to_ignore_message(about, bots=bots, posts=self._bots)
        if reason is None and edit == "message_changed" and _looks_the_same(event, about):
            return "unchanged"
        return reason

    def message_key(self, envelope: Payload, event: Payload) -> str | None:
        """Return the key of a message by its address; ``None`` where only its event id counts.

        Slack delivers a message that mentions the app twice, and a message of a channel that organizations share once
        per workspace that has the app. The event ids differ. With one key, the second is a duplicate. The database
        cannot derive it: it depends on the event types that this service takes.
        """
        name, edit = subscription(event), edit_of(event)
        merged, shared = edit is None and name in self._delivered_twice, is_shared(envelope)
        if not merged and not (shared and (name == "app_mention" or event.get("type") == "message")):
            return None
        # Workspaces name a shared channel by the same id, and each other's messages by different team ids.
        team = () if shared else (workspace_of(envelope),)
        parts = [*team, event.get("channel"), event.get("ts")]
        if not all(isinstance(part, str) and part for part in parts):
            return None
        sort = edit or ("message" if merged or name != "app_mention" else "mention")
        key = ":".join((sort, *parts))
        return key if len(key) <= MAX_KEY else None


def read_event(body: bytes, subscriptions: Subscriptions) -> Envelope:
    # Slack's signature can be verified over UTF-8 only, so this replaces nothing that was signed.
    parsed = object_of(body.decode(errors="replace"))
    return parsed if isinstance(parsed, Malformed) else event_of(parsed, subscriptions)


def event_of(parsed: Json, subscriptions: Subscriptions) -> Envelope:
    envelope = parsed.value
    match envelope.get("type"):
        case "event_callback":
            return _event_callback(parsed, subscriptions)
        case "url_verification":
            challenge = envelope.get("challenge")
            return Challenge(challenge) if isinstance(challenge, str) else Malformed("no challenge")
        case "app_rate_limited":
            minute = envelope.get("minute_rate_limited")
            return RateLimited(str(envelope.get("team_id"))[:20], minute if isinstance(minute, int) else 0)
        case _:
            return Malformed("not an event")


def read_form(body: bytes) -> Envelope:
    """Read a form: an interaction's JSON is in the field ``payload``, and a command is an object of its fields."""
    try:
        text = body.decode(errors="replace")  # as in read_event
        fields = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS))
    except ValueError:
        return Malformed("too many fields")
    if fields.get("ssl_check") == "1":
        return Ignore("ssl_check")
    if "payload" not in fields:
        return command_of(read_json(json.dumps(fields)))
    parsed = object_of(fields["payload"])
    return parsed if isinstance(parsed, Malformed) else interaction_of(parsed)


def command_of(parsed: Json) -> Envelope:
    command = parsed.value.get("command")
    if not isinstance(command, str) or not command.lstrip("/"):
        return Malformed("neither a command nor an interaction")
    return _take(parsed, waits=True)


def interaction_of(parsed: Json) -> Envelope:
    match parsed.value.get("type"):
        case "block_suggestion":
            # It has no trigger_id, and people type the same letters again: each request is an event of its own.
            return _take(parsed, f"suggestion:{uuid4().hex}", waits=True)
        case str(name) if name:
            return _take(parsed, waits=True)
        case _:
            return Malformed("no type")


def is_report(taken: Take) -> bool:
    """Return whether several installations may report an event: a message of a shared channel, kept by its address."""
    payload = taken.payload or {}
    return is_shared(payload) and taken.key is not None and taken.key != key_of(payload)


def _event_callback(parsed: Json, subscriptions: Subscriptions) -> Envelope:
    envelope = parsed.value
    event = envelope.get("event")
    if not isinstance(event, dict):
        return Malformed("no event")
    if subscription(event) is None:
        return Malformed("no event type")
    reason = subscriptions.reason_to_ignore(envelope, event)
    name = subscription(event) if reason == "type" and event.get("type") not in _TOLD_ALWAYS else None
    taken = (
        Ignore(reason, name, envelope)
        if reason
        else _message(parsed, subscriptions.message_key(envelope, event))
    )
    if event.get("type") == _REMOVAL_FROM_TEAM:
        return _removed_from_team(envelope, event, taken)
    return _removed(envelope, event, taken) if event.get("type") in _REMOVALS else taken


def _removed_from_team(envelope: Payload, event: Payload, taken: Take | Ignore) -> Removed | Take | Ignore:
    """Return the removal of our app from a workspace, which the event alone names; ``taken`` for another app."""
    app, team = event.get("app_id"), text_in(event.get("team_id"))
    if app is None or app != envelope.get("api_app_id") or team is None or not team.startswith("T"):
        return taken  # of an organization's own removal, app_uninstalled says more
    return Removed(None, team, False, None, _at(envelope), taken, from_team=True)


def _removed(envelope: Payload, event: Payload, taken: Take | Ignore) -> Removed:
    enterprise, team, wide = reporter_of(envelope)
    users = _users_in(event.get("tokens")) if event.get("type") == "tokens_revoked" else None
    return Removed(enterprise, team, wide, users, _at(envelope), taken)


def _at(envelope: Payload) -> int | None:
    at = envelope.get("event_time")
    return at if isinstance(at, int) and 0 < at < 2**32 else None


def _users_in(tokens: object) -> tuple[str, ...]:
    given = object_in(tokens)
    people = given.get("oauth")
    found = [each for each in people if isinstance(each, str) and each] if isinstance(people, list) else []
    return (*found, "") if given.get("bot") else tuple(found)


def _take(parsed: Json, key: str | None = None, *, waits: bool = False) -> Take:
    return Take(
        kind_of(parsed.value), key or key_of(parsed.value), parsed.text, parsed.altered, waits, parsed.value
    )


def _message(parsed: Json, key: str | None) -> Take:
    envelope, taken = parsed.value, _take(parsed, key)
    about = edited_message(envelope["event"]) or envelope["event"]
    if about.get("type") not in ("app_mention", "message"):
        return taken
    return replace(taken, by_person=_by_person(about) and not _is_own(envelope, about, ""))


def _by_person(message: Payload) -> bool:
    """Return whether a person wrote a message. Slackbot, and some of Slack's own parts, have no ``bot_id``."""
    user = text_in(message.get("user"))
    known = user is not None and user[0] in "UW" and user != _SLACKBOT
    return known and not message.get("bot_id") and not message.get("bot_profile")


def _is_own(envelope: Payload, event: Payload, name: str) -> bool:
    app = event.get("app_id")
    if app and app == envelope.get("api_app_id"):
        return True
    named = authorization_of(envelope)
    bot = text_in(named.get("user_id")) if named.get("is_bot") is True else None
    # The app's own joining and leaving of a channel is taken.
    return name not in _MEMBERSHIP and bot is not None and event.get("user") == bot


def _from_person(message: Payload) -> bool:
    """Return whether a person may have written a message that has a ``bot_id``.

    Slack names the app in each message that an app posts, also with a person's token. Nothing in the message says
    whether its ``user`` is a bot.
    """
    if message.get("subtype") in _BOT_SUBTYPES or text_in(message.get("app_id")) is None:
        return False
    workflow = (
        "workflow_id" in message or object_in(message.get("bot_profile")).get("is_workflow_bot") is True
    )
    return not workflow and text_in(message.get("user")) not in (None, _SLACKBOT)


def _reason_to_ignore_message(message: Payload, *, bots: bool, posts: bool) -> str | None:
    """Return why a message is not taken. ``bots``: no person need have written it. ``posts``: and a subtype of bots."""
    subtype = message.get("subtype")
    if subtype in _BOT_SUBTYPES and not posts:
        return "bot"
    if subtype not in (*_PLAIN_SUBTYPES, *_BOT_SUBTYPES):
        return "subtype"
    if message.get("hidden"):
        return "hidden"
    return "bot" if message and not _by_person(message) and not bots else None


def _looks_the_same(event: Payload, message: Payload) -> bool:
    # Slack reports a changed message also when it shows a link in it, or counts its replies. It does not always say
    # what the message was before: then `edited` tells that a person changed it.
    before = object_in(event.get("previous_message"))
    return said_in(before) == said_in(message) if before else not message.get("edited")


def object_of(text: str) -> Json | Malformed:
    """Return a JSON object; anything else is malformed."""
    try:
        parsed = read_json(text)
    except NotJsonError as error:
        return Malformed(str(error))
    return parsed if isinstance(parsed.value, dict) else Malformed("not a JSON object")
