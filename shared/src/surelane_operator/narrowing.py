"""Filter events by what no index has: their workspace, channel, user, error, and parts of their keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from surelane.calls import Calls
from surelane_operator.filters import Cursor, Filter
from surelane_operator.rows import LISTED, parsed

LOOKS_AT = 1000
"""Events that one statement narrows down at most, so that a rare match costs no more than a common one."""


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
class Narrowed:
    """The events of ``which`` that also match ``narrow``: a change looks at them from ``after`` on."""

    which: Filter
    narrow: Narrow
    after: Cursor | None = None


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
