"""The events: filters, keyset pages, and changes to some or to all that match."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from surelane.errors import InvalidInput
from surelane_operator.console.screen import Asked, Screen, Sources, Values
from surelane_operator.filters import STATUSES, Cursor, Filter, cursor_after, read_cursor
from surelane_operator.narrowing import Narrow, find_jobs

PAGE = 50
FIELDS = ("status", "kind", "workspace", "channel", "user", "since", "until", "error", "text", "key")
"""The fields of the filter, as the address names them."""


def events(sources: Sources) -> Screen:
    """Make the screen."""

    async def read(asked: Asked) -> Values:
        given = {name: value for name in FIELDS if (value := asked.word(name))}
        which, narrow, wrong = read_filter(given)
        after = _cursor(asked.word("after"))
        found = await find_jobs(sources.calls, which, narrow, PAGE, after) if not wrong else None
        address = {**given, "after": cursor_after_row(found.next)} if found and found.next else None
        return {
            "given": given,
            "wrong": wrong,
            "statuses": STATUSES,
            "kinds": await sources.operations.kinds(),
            "jobs": found.jobs if found else [],
            "looked": found.looked if found and narrow else None,
            "next": None if address is None else f"/console/events?{urlencode(address)}",
            "first": None if after is None else f"/console/events?{urlencode(given)}",
            "matching": _matching(which, narrow),
            "narrowed": bool(narrow),
        }

    return Screen("events", "/events", "Events", read, every=5.0)


def read_filter(given: Mapping[str, str]) -> tuple[Filter, Narrow, str | None]:
    """Read the fields of an address; the last value says what is wrong with them."""
    wrong = None
    try:
        since, until = (_moment(given.get(name)) for name in ("since", "until"))
    except ValueError:
        since = until = None
        wrong = "Write times as 2026-01-31 12:00, in UTC."
    statuses = given["status"].split(",") if "status" in given else None
    if statuses and not set(statuses) <= set(STATUSES):
        statuses, wrong = None, f"A state is one of {', '.join(STATUSES)}."
    kinds = given["kind"].split(",") if "kind" in given else None
    narrow = Narrow(
        given.get("workspace"),
        given.get("channel"),
        given.get("user"),
        given.get("error"),
        given.get("text", "").split(),
    )
    return Filter(statuses, kinds, given.get("key"), since, until), narrow, wrong


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _cursor(text: str | None) -> Cursor | None:
    try:
        return None if text is None else read_cursor(text)
    except ValueError as error:
        raise InvalidInput(str(error)) from None


def cursor_after_row(cursor: Cursor) -> str:
    """Write a cursor for an address."""
    return cursor_after({"id": cursor.id, "finished_at": cursor.finished_at})


def _matching(which: Filter, narrow: Narrow) -> dict[str, Any]:
    """Return the filter as the API takes it for a change to all that match."""
    given = {
        "status": which.statuses,
        "kind": which.kinds,
        "key": which.key,
        "since": which.since and which.since.isoformat(),
        "until": which.until and which.until.isoformat(),
        "workspace": narrow.workspace,
        "channel": narrow.channel,
        "user": narrow.user,
        "error": narrow.error,
        "text": " ".join(narrow.words),
    }
    return {name: value for name, value in given.items() if value}
