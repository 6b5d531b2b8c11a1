"""The page's own reads: filtered events, a thread, a message's events, and the overview's figures."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

from surelane.calls import Calls
from surelane_operator.filters import Cursor, Filter
from surelane_operator.operations import LISTED, parsed

LOOKS_AT = 1000
"""Events that a page narrows down at most, so that a rare match costs no more than a common one."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """A filter by what no index has: it is applied to the events that :class:`Filter` finds."""

    workspace: str | None = None
    channel: str | None = None
    user: str | None = None
    error: str | None = None
    words: Sequence[str] = ()

    def __bool__(self) -> bool:
        """Return whether it filters anything."""
        return bool(self.workspace or self.channel or self.user or self.error or self.words)


@dataclass(frozen=True, slots=True)
class Found:
    """A page of events.

    Attributes:
        jobs: the rows of :meth:`Operations.list_jobs`.
        next: where the next page begins; ``None``: there is none.
        looked: how many events were looked at.
    """

    jobs: list[dict[str, Any]]
    next: Cursor | None
    looked: int


async def find_jobs(calls: Calls, which: Filter, narrow: Narrow, limit: int, after: Cursor | None) -> Found:
    """Return a page of events that match both filters. With ``narrow`` it may be short, though there are more."""
    most = LOOKS_AT if narrow else limit
    rows = await calls.fetch(
        f"select nth, matches, {LISTED} from (select m.nth, m.matches, (m.job).* from agent.narrow_jobs("  # noqa: S608 - a constant
        "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) as m) as found order by nth",
        which.statuses,
        which.kinds,
        which.key,
        which.since,
        which.until,
        after.finished_at if after else None,
        after.id if after else None,
        most,
        narrow.workspace,
        narrow.channel,
        narrow.user,
        narrow.error,
        list(narrow.words),
    )
    matching = [row for row in rows if row["matches"]][:limit]
    is_cut = len(matching) == limit
    # The last row is the last one that was looked at.
    last = matching[-1] if is_cut else rows[-1] if rows else None
    looked = last["nth"] if last else 0
    following = Cursor(last["id"], last["finished_at"]) if last and (is_cut or looked == most) else None
    return Found([parsed(row) for row in matching], following, looked)


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
