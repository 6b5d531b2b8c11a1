"""What a read is about: a filter of events, the place of a page, a message in Slack as people name it."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args
from urllib.parse import parse_qs, urlsplit

Status = Literal["pending", "scheduled", "running", "completed", "failed", "cancelled", "expired"]
Ended = Literal["completed", "failed", "cancelled", "expired"]
STATUSES: tuple[Status, ...] = get_args(Status)
LIVE, ENDED = STATUSES[:3], STATUSES[3:]
MAX_ID = 2**63 - 1
MAX_CURSOR = 100
"""Characters."""
_TAG = re.compile(r"([\w.-]{1,40})[:=](.{1,200})", re.ASCII)
_TRIGGER = re.compile(r"\d+\.\d+\.[0-9a-f]+")
_BETWEEN_TAGS = re.compile(r",(?=[\w.-]{1,40}[:=])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of events; a field that is ``None`` matches every event.

    ``key`` is an item, group or dedupe key. ``since`` and ``until`` are about when an event was enqueued or ended. No
    index has ``workspace`` to ``words``: these narrow down what the others find. Of ``tags`` one value a name counts.
    """

    statuses: Sequence[str] | None = None
    kinds: Sequence[str] | None = None
    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    workspace: str | None = None
    channel: str | None = None
    user: str | None = None
    error: str | None = None
    words: Sequence[str] = ()
    tags: Mapping[str, Sequence[str]] | None = None

    @property
    def indexed(self) -> tuple[object, ...]:
        """Return what indexes have, as the SQL functions take it."""
        return self.statuses, self.kinds, self.key, self.since, self.until

    @property
    def narrowing(self) -> tuple[object, ...]:
        """Return what no index has, as the SQL functions take it."""
        return self.workspace, self.channel, self.user, self.error, list(self.words)

    @property
    def narrows(self) -> bool:
        """Return whether it filters by what no index has."""
        return any(self.narrowing)


def kind_of(text: str) -> str:
    """Return a kind as people write it: a command is ``/deploy``."""
    return f"slack.command.{text[1:]}" if text.startswith("/") else text


def natural_key(text: str) -> str:
    """Return the natural key that a person means: a command or a click has a hash of its ``trigger_id``."""
    if _TRIGGER.fullmatch(text):
        return f"trigger:{hashlib.sha256(text.encode()).hexdigest()}"
    return text


def split_tags(text: str) -> list[str]:
    """Split tags at commas. A value may have commas, too."""
    return _BETWEEN_TAGS.split(text)


def read_tags(texts: Iterable[str] | None) -> dict[str, list[str]] | None:
    """Read tags that are written as ``customer:acme`` or ``customer=acme``; any other is a ValueError."""
    tags: dict[str, list[str]] = {}
    for text in texts or ():
        if (tag := _TAG.fullmatch(text)) is None:
            raise ValueError("write a tag as customer:acme")
        tags.setdefault(tag[1], []).append(tag[2])
    return tags or None


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last row of a page: its id, and when it ended, if it has."""

    id: int
    finished_at: datetime | None = None

    def text(self) -> str:
        """Return it as :func:`read_cursor` reads it."""
        moment = self.finished_at.isoformat() if self.finished_at else ""
        return base64.urlsafe_b64encode(f"{self.id} {moment}".encode()).decode().rstrip("=")


def keyset(after: Cursor | None) -> tuple[datetime | None, int | None]:
    """Return a place in a list as the SQL functions take it."""
    return (after.finished_at, after.id) if after else (None, None)


def read_cursor(text: str) -> Cursor:
    """Read a cursor; what :func:`cursor_after` has not written is a ValueError."""
    try:
        identity, _, moment = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().partition(" ")
        finished_at = datetime.fromisoformat(moment).astimezone(UTC) if moment else None
        cursor = Cursor(int(identity), finished_at)
    except (TypeError, ValueError, OverflowError):  # JSON may bring another type than text
        cursor = None
    if cursor is None or len(text) > MAX_CURSOR or not 0 < cursor.id <= MAX_ID:
        raise ValueError("pass `next` of the page before")
    return cursor


def cursor_after(row: Mapping[str, Any]) -> str:
    """Return the cursor of the page that follows a row."""
    return Cursor(row["id"], row["finished_at"]).text()


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """A message of Slack's. ``thread`` is the ts of the thread's first message, where the message is a reply."""

    channel: str
    ts: str
    thread: str | None = None
    team: str | None = None


_ARCHIVE = re.compile(r"/archives/([A-Z0-9]{3,20})/p(\d{10})(\d{6})")
_CLIENT = re.compile(r"/client/([TE][A-Z0-9]{2,20})/([A-Z0-9]{3,20})(?:/thread/[A-Z0-9]+-(\d{10}\.\d{6}))?")
_PAIR = re.compile(r"(?:([TE][A-Z0-9]{2,20})[\s:,/]+)?([CDG][A-Z0-9]{2,20})[\s:,/]+p?(\d{10})\.?(\d{6})")
_TS = re.compile(r"\d{10}\.\d{6}")


def read_message(text: str) -> MessagePlace | None:
    """Read a link to a message as Slack copies it, or a channel and a ts; ``None``: it is neither."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    thread = query.get("thread_ts", "")
    if found := _ARCHIVE.search(parts.path):
        channel, seconds, rest = found.groups()
        return MessagePlace(channel, f"{seconds}.{rest}", thread if _TS.fullmatch(thread) else None)
    if (found := _CLIENT.search(parts.path)) and found[3]:
        return MessagePlace(found[2], found[3], team=found[1])
    if found := _PAIR.fullmatch(text.strip()):
        return MessagePlace(found[2], f"{found[3]}.{found[4]}", team=found[1])
    return None


def parts_of(key: str) -> tuple[str | None, str | None, str | None]:
    """Split the group key of a Slack event into workspace, channel and the ts of the thread."""
    match key.split(":"):
        case [workspace, channel, ts]:
            return workspace, channel, ts
        case [channel, ts] if "." in ts:  # of a channel that organizations share
            return None, channel, ts
        case [workspace, channel]:
            return workspace, channel, None
        case _:
            return None, None, None
