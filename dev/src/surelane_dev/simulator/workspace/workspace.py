"""Keep a workspace in memory. It uses no network, and only the clock that it gets."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from secrets import token_hex
from typing import Any
from uuid import uuid4

from surelane_dev.simulator.workspace.model import (
    JSON,
    SLACKBOT,
    Change,
    Channel,
    Deleted,
    Edited,
    Group,
    Joined,
    Message,
    Posted,
    Reacted,
    StatusSet,
    Streamed,
    User,
)

STATUS_LASTS = timedelta(minutes=2)
ACTION_LASTS = timedelta(minutes=5)
"""For how long an ``action_token`` lets the app search. Slack calls it short-lived and says no figure."""
TOMBSTONE = "This message was deleted."


@dataclass(frozen=True, slots=True)
class AssistantStatus:
    """The assistant's status in a thread, until it lapses."""

    text: str
    until: float


@dataclass(kw_only=True, eq=False)
class Workspace:
    """Users, channels, messages and statuses. Listeners get every change, in order."""

    team_id: str
    name: str
    app_id: str
    bot_id: str
    bot: User
    users: dict[str, User]
    channels: dict[str, Channel]
    enterprise_id: str | None = None
    """The Enterprise Grid organization that it belongs to."""
    now: Callable[[], float] = time.time
    partners: "dict[str, Workspace]" = field(default_factory=dict)
    """The workspaces with which it shares channels, by their ids."""
    groups: dict[str, Group] = field(default_factory=dict)
    """The user groups, by their ids."""
    looked_at: dict[str, JSON] = field(default_factory=dict)
    """What each person is looking at, as the context of the app's events, by the person's id."""
    assistant_threads: dict[str, str] = field(default_factory=dict)
    """The newest thread of each person with an app that has the older assistant view, by the person's id."""
    unfurl_domains: frozenset[str] = frozenset()
    """The domains whose links the app shows."""
    action_tokens: dict[str, float] = field(default_factory=dict)
    """Until when each token of an event lets the app search."""
    listeners: list[Callable[[Change], None]] = field(default_factory=list)
    _statuses: dict[tuple[str, str], AssistantStatus] = field(default_factory=dict)
    _last_ts: int = 0

    def next_ts(self) -> str:
        """Return the time as Slack writes it. It increases with each call."""
        self._last_ts = max(int(self.now() * 1_000_000), self._last_ts + 1)
        return f"{self._last_ts // 1_000_000}.{self._last_ts % 1_000_000:06d}"

    def new_action_token(self) -> str:
        """Return a token with which the app may search for the person who wrote a message."""
        while self.action_tokens and next(iter(self.action_tokens.values())) < self.now():
            del self.action_tokens[next(iter(self.action_tokens))]
        token = f"{token_hex(5)}.{token_hex(5)}.{token_hex(8)}"
        self.action_tokens[token] = self.now() + ACTION_LASTS.total_seconds()
        return token

    def share(self, channel: Channel, *partners: "Workspace") -> None:
        """Share a channel with other workspaces. All who are its members can be of any of them."""
        channel.shared = True
        for workspace in (self, *partners):
            workspace.channels[channel.id] = channel
            workspace.partners |= {each.team_id: each for each in (self, *partners) if each is not workspace}

    def author_of(self, message: Message) -> "Workspace":
        """Return the workspace of a message's author: this one, or a partner."""
        return self.partners.get(message.team or "", self)

    def member(self, user: str) -> "tuple[Workspace, User] | None":
        """Return a user by id, and the user's workspace: this one, or a partner in a shared channel."""
        everywhere = (self, *self.partners.values())
        return next(((each, each.users[user]) for each in everywhere if user in each.users), None)

    def audience(self, change: Change) -> "list[Workspace]":
        """Return the workspaces that see a change here: this one, and the partners in a shared channel."""
        match change:
            case StatusSet():
                return [self]
            case Joined(channel, _):
                place = channel.id
            case _:
                place = change.message.channel
        return [self, *(each for each in self.partners.values() if place in each.channels)]

    def channel(self, name_or_id: str) -> Channel | None:
        """Return a channel by its id, or by its name with or without the ``#``."""
        name = name_or_id.removeprefix("#")
        return self.channels.get(name_or_id) or next(
            (c for c in self.channels.values() if c.name == name and not c.is_im), None
        )

    def user(self, name_or_id: str) -> User | None:
        """Return a user by id, or by name with or without the ``@``."""
        name = name_or_id.removeprefix("@").lower()
        return self.users.get(name_or_id) or next((u for u in self.users.values() if u.name == name), None)

    def people(self) -> list[User]:
        """Return the users who are not the bot, in their order."""
        return [user for user in self.users.values() if not user.is_bot]

    def direct_messages(self, user: str) -> Channel:
        """Return the direct messages of a user with the bot."""
        return next(c for c in self.channels.values() if c.peer == user)

    def message(self, channel: str, ts: str) -> Message | None:
        """Return the message that ``(channel, ts)`` identifies, if there is one."""
        found = self.channels.get(channel)
        return found.messages.get(ts) if found else None

    def post(self, channel: Channel, user: str, text: str, **fields: Any) -> Message:  # noqa: ANN401 - Message's own
        """Post a message. A reply ends the assistant's status in its thread."""
        while (ts := self.next_ts()) in channel.messages:
            pass  # of a partner
        message = Message(channel.id, ts, user, text, **fields)
        message.team = self.team_id if channel.shared else None
        if not (message.by_app or message.bot_id or message.user == SLACKBOT):
            message.client_msg_id = str(uuid4())
        self._join_thread(channel, message)
        channel.messages[message.ts] = message
        if message.by_app and message.thread_ts:
            self.set_status(channel.id, message.thread_ts, "")
        self._tell(Posted(message))
        return message

    def speak(self, channel: Channel, text: str = "", **fields: Any) -> Message:  # noqa: ANN401 - Message's own
        """Post as the bot."""
        return self.post(channel, self.bot.id, text, by_app=True, **fields)

    def edit(self, message: Message, **fields: Any) -> None:  # noqa: ANN401 - Message's own
        """Replace the given parts of a message."""
        previous = replace(message)
        for name, value in fields.items():
            setattr(message, name, value)
        message.edited_ts = self.next_ts()
        self._tell(Edited(message, previous))

    def stream(self, message: Message, text: str, *, ended: bool = False) -> None:
        """Append to a streamed message."""
        message.text += text
        message.streaming = not ended
        self._tell(Streamed(message))

    def show_links(self, message: Message, shown: dict[str, JSON]) -> None:
        """Show links below a message, by their URLs. Shown links are replaced."""
        known = {each["from_url"]: each for each in message.attachments if "from_url" in each}
        others = [each for each in message.attachments if "from_url" not in each]
        message.attachments = [*others, *(known | shown).values()]
        self._tell(Streamed(message))

    def delete(self, message: Message) -> None:
        """Delete a message. If it has replies, a tombstone keeps its thread together."""
        channel = self.channels[message.channel]
        tombstone = None
        if channel.replies(message.ts):
            bare = Message(message.channel, message.ts, message.user, TOMBSTONE, thread_ts=message.ts)
            tombstone = replace(bare, subtype="tombstone")
            channel.messages[message.ts] = tombstone
        else:
            del channel.messages[message.ts]
        self._tell(Deleted(message, tombstone))

    def react(self, message: Message, user: str, name: str) -> bool:
        """Add a reaction; return whether it is new."""
        users = message.reactions.setdefault(name, [])
        if user in users:
            return False
        users.append(user)
        self._tell(Reacted(message, user, name, added=True))
        return True

    def unreact(self, message: Message, user: str, name: str) -> bool:
        """Remove a reaction; return whether it was there."""
        users = message.reactions.get(name, [])
        if user not in users:
            return False
        users.remove(user)
        if not users:
            del message.reactions[name]
        self._tell(Reacted(message, user, name, added=False))
        return True

    def set_status(self, channel: str, thread_ts: str, text: str) -> None:
        """Set the assistant's status in a thread; an empty text ends it."""
        had = self._statuses.pop((channel, thread_ts), None)
        if text:
            until = self.now() + STATUS_LASTS.total_seconds()
            self._statuses[channel, thread_ts] = AssistantStatus(text, until)
        if text or had:
            self._tell(StatusSet(channel, thread_ts, text))

    def statuses(self) -> list[JSON]:
        """Return the statuses that have not lapsed."""
        return [
            {"channel": channel, "thread_ts": ts, "text": status.text, "until": status.until}
            for (channel, ts), status in self._statuses.items()
            if status.until > self.now()
        ]

    def join(self, channel: Channel, user: str) -> bool:
        """Make a user a member of a channel; return whether that is new."""
        if user in channel.members:
            return False
        channel.members.add(user)
        self._tell(Joined(channel, user))
        return True

    def _join_thread(self, channel: Channel, message: Message) -> None:
        if message.thread_ts is None:
            return
        parent = channel.messages.get(message.thread_ts)
        if parent is not None:
            parent.thread_ts = parent.thread_ts or parent.ts
            message.thread_ts = parent.thread_ts

    def _tell(self, change: Change) -> None:
        for listener in self.listeners:
            listener(change)
