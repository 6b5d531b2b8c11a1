"""Define the objects of a Slack workspace, and the changes to them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

JSON = dict[str, Any]
SLACKBOT = "USLACKBOT"


@dataclass(frozen=True, slots=True)
class User:
    """A person, or the app's bot user."""

    id: str
    name: str
    real_name: str
    is_bot: bool = False
    is_admin: bool = False
    is_restricted: bool = False
    """Whether it is a guest."""
    title: str = ""
    tz: str = "Etc/UTC"
    tz_offset: int = 0
    """Seconds of local time before UTC's."""
    deleted: bool = False
    """Whether the account is deactivated."""


@dataclass(frozen=True, slots=True)
class Group:
    """A user group."""

    id: str
    handle: str
    name: str
    users: tuple[str, ...]


@dataclass(slots=True)
class Message:
    """A message of a channel or a thread. ``(channel, ts)`` identifies it."""

    channel: str
    ts: str
    user: str
    text: str
    thread_ts: str | None = None
    by_app: bool = False
    team: str | None = None
    """The author's workspace, in a channel that workspaces share."""
    blocks: list[JSON] = field(default_factory=list)
    attachments: list[JSON] = field(default_factory=list)
    files: list[JSON] = field(default_factory=list)
    metadata: JSON | None = None
    subtype: str | None = None
    client_msg_id: str | None = None
    username: str | None = None
    bot_id: str | None = None
    """The bot of another app that wrote it, or through which a person did."""
    sender: JSON = field(default_factory=dict)
    """What else Slack says of that app, or of the workflow."""
    edited_ts: str | None = None
    visible_to: str | None = None
    """The only user who sees an ephemeral message; ``None`` for any other."""
    streaming: bool = False
    streamed: bool = False
    """Whether its text came in parts. It is shown above the blocks that came with it, not in place of them."""
    tasks: list[JSON] = field(default_factory=list)
    """The task cards of a streamed message, in the order of their arrival."""
    plan: str = ""
    """What a streamed message says above its task cards."""
    reactions: dict[str, list[str]] = field(default_factory=dict)
    """The users who reacted, by the emoji's name."""

    @property
    def is_reply(self) -> bool:
        """Whether it is in a thread and is not its first message."""
        return self.thread_ts is not None and self.thread_ts != self.ts

    @property
    def only_tasks(self) -> bool:
        """Whether it shows tasks alone: of a stream, or as a plan block."""
        kinds = [block["type"] for block in self.blocks]
        return kinds == ["plan"] or bool(self.tasks and not (self.text or kinds))

    @property
    def in_channel(self) -> bool:
        """Whether the channel shows it, and not its thread alone."""
        return not self.is_reply or self.subtype == "thread_broadcast"


@dataclass(slots=True)
class Channel:
    """A public channel, or the direct messages of one user with the bot."""

    id: str
    name: str
    members: set[str]
    topic: str = ""
    peer: str | None = None
    """The user of direct messages with the bot; ``None`` for a channel."""
    messages: dict[str, Message] = field(default_factory=dict)
    pins: dict[str, JSON] = field(default_factory=dict)
    """Who pinned a message, by its ``ts``, in the order of the pins."""
    bookmarks: dict[str, JSON] = field(default_factory=dict)
    """The bookmarks by their ids."""
    shared: bool = False
    """Whether workspaces of different organizations share it (Slack Connect). Each of them has this object."""

    @property
    def is_im(self) -> bool:
        return self.peer is not None

    def thread(self, ts: str) -> list[Message]:
        """Return the message ``ts`` and the replies to it, oldest first."""
        return [m for m in self.messages.values() if m.ts == ts or (m.is_reply and m.thread_ts == ts)]

    def replies(self, ts: str) -> list[Message]:
        """Return the replies to the message ``ts`` that are not ephemeral, oldest first."""
        return [m for m in self.thread(ts) if m.ts != ts and m.visible_to is None]


class Posted(NamedTuple):
    """A message was posted, or a streamed message started."""

    message: Message


class Edited(NamedTuple):
    """A message's text or blocks were replaced."""

    message: Message
    previous: Message
    """What it was before."""


class Streamed(NamedTuple):
    """More of a streamed message arrived, or it ended."""

    message: Message


class Deleted(NamedTuple):
    """A message was deleted. If it had replies, a tombstone keeps its place."""

    message: Message
    tombstone: Message | None


class Reacted(NamedTuple):
    """A reaction was added to a message or removed from it."""

    message: Message
    user: str
    name: str
    added: bool


class StatusSet(NamedTuple):
    """The assistant set its status in a thread, or cleared it (an empty text)."""

    channel: str
    thread_ts: str
    text: str


class Joined(NamedTuple):
    """Somebody became a member of a channel."""

    channel: Channel
    user: str


Change = Posted | Edited | Streamed | Deleted | Reacted | StatusSet | Joined


def by_id(items: Iterable[User]) -> dict[str, User]:
    return {item.id: item for item in items}
