"""A message in Slack, as people name it: a link, or a channel and a ts."""

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True, slots=True)
class Message:
    """A message of Slack's. ``thread`` is the ts of the thread's first message, where the message is a reply."""

    channel: str
    ts: str
    thread: str | None = None
    team: str | None = None


_ARCHIVE = re.compile(r"/archives/([A-Z0-9]{3,20})/p(\d{10})(\d{6})")
_CLIENT = re.compile(r"/client/([TE][A-Z0-9]{2,20})/([A-Z0-9]{3,20})(?:/thread/[A-Z0-9]+-(\d{10}\.\d{6}))?")
_PAIR = re.compile(r"(?:([TE][A-Z0-9]{2,20})[\s:,/]+)?([CDG][A-Z0-9]{2,20})[\s:,/]+p?(\d{10})\.?(\d{6})")
_TS = re.compile(r"\d{10}\.\d{6}")


def read_message(text: str) -> Message | None:
    """Read a link to a message as Slack copies it, or a channel and a ts; ``None``: it is neither."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    thread = query.get("thread_ts", "")
    if found := _ARCHIVE.search(parts.path):
        channel, seconds, rest = found.groups()
        return Message(channel, f"{seconds}.{rest}", thread if _TS.fullmatch(thread) else None)
    if (found := _CLIENT.search(parts.path)) and found[3]:
        return Message(found[2], found[3], team=found[1])
    if found := _PAIR.fullmatch(text.strip()):
        return Message(found[2], f"{found[3]}.{found[4]}", team=found[1])
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
