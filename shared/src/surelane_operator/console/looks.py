"""The page's own reads: a thread, a message's events, and the overview's figures."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

from surelane.calls import Calls
from surelane_operator.rows import LISTED, parsed


async def group_jobs(calls: Calls, key: str, limit: int) -> list[dict[str, Any]]:
    """Return the events of a group, in the order in which they happened."""
    rows = await calls.fetch(f"select {LISTED} from agent.group_jobs($1, $2)", key, limit)  # noqa: S608 - a constant
    return sorted((parsed(row) for row in rows), key=lambda job: (job["event_ts"], job["id"]))


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


async def message_jobs(calls: Calls, message: Message, teams: Sequence[str]) -> list[int]:
    """Return the ids of a message's events, from the first of the workspaces that has one."""
    rows = await calls.fetch(
        "select agent.message_jobs($1, $2, $3, $4)",
        [*([message.team] if message.team else teams), None],  # last as in a channel that organizations share
        message.channel,
        Decimal(message.ts),
        message.thread,
    )
    return [row[0] for row in rows]


async def longest_waiting(calls: Calls, limit: int) -> list[Mapping[str, Any]]:
    """Return the events that have waited the longest, with the reason why."""
    return [dict(row) for row in await calls.fetch("select * from agent.longest_waiting($1)", limit)]


async def recent_figures(calls: Calls, minutes: int, sample: int = 300) -> list[Mapping[str, Any]]:
    """Return what ended in the last minutes, by kind and outcome: its rate, and its latencies in seconds."""
    rows = await calls.fetch("select * from agent.recent_figures($1, $2)", minutes, sample)
    return [dict(row) for row in rows]


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
