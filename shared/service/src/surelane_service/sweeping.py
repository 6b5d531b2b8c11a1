"""The calls that tidy the queue: sweep, free groups, drop old history, and erase after an uninstall."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from surelane.calls import Calls


@dataclass(frozen=True, slots=True)
class Erased:
    """One step of erasing what belongs to a workspace or organization (``owner``) that removed the app.

    Attributes:
        receipt, key: the number of the erasure's receipt, and the key of its hashes.
        done: this was the last step.
        left: it was the last one for now: rows refuse, and a later pass begins anew.
        waiting: events that have not ended yet, or that another transaction has locked.
    """

    owner: str
    receipt: int
    key: str
    done: bool
    left: bool
    waiting: int


@dataclass(frozen=True, slots=True)
class RetentionStep:
    """A step of retention. ``after``: where the next one begins; ``None`` at the end.

    ``dropped``: how many chunks or rows went. ``blocked``: another transaction locks rows that must go.
    """

    after: int | None
    dropped: int
    blocked: bool


class Sweeping:
    """The SQL functions by which workers tidy the queue. Each call is one bounded step."""

    calls: Calls

    async def sweep_events(
        self,
        *,
        max_attempts: int | None = None,
        max_vt_age: timedelta = timedelta(hours=1),
        kinds: Sequence[str] | None = None,
        by_age: bool = True,
        limit: int = 1000,
        mend: bool = True,
    ) -> int:
        """Move up to ``limit`` events of each sort to history; return how many. Call it again until it returns 0.

        Args:
            max_attempts: for events that neither have a maximum nor are of a kind that has one; ``None`` keeps them.
            max_vt_age: with ``by_age``, an event that was visible and unclaimed for longer is too old.
            kinds: the kinds that may be too old; all of them where ``None``.
            mend: first repair every group and continuation; one call of a series is enough.
        """
        bounds = max_attempts, max_vt_age, kinds, by_age, limit, mend
        return await self.calls.call("sweep_events", *bounds)

    async def free_groups(self) -> None:
        await free_groups(self.calls)

    async def drop_history(self, older_than: timedelta, after: int) -> RetentionStep:
        """Drop history by its age, in one bounded step that begins after event ``after``."""
        (row,) = await self.calls.rows("drop_history", older_than, after)
        return RetentionStep(row["next"], row["dropped"], row["blocked"])

    async def erase_uninstalled(self, grace: timedelta, by: str, but: Collection[str] = ()) -> Erased | None:
        """Do a step of erasing what belongs to an owner that removed the app so long ago; ``None``: there is none.

        It passes over the owners ``but``.
        """
        (row,) = await self.calls.rows("erase_uninstalled", grace, by, 500, list(but))
        if row["receipt"] is None:
            return None
        ended = row["place"] == "done", row["place"] == "left"
        return Erased(row["owner"], row["receipt"], row["key"], *ended, row["waiting"])


async def free_groups(calls: Calls) -> None:
    """Give another head to every group whose head is not claimed although another member could be.

    Each call takes up to 1,000 groups in its own transaction, so that it holds no lock for long.
    """
    after: str | None = ""
    while after is not None:
        after = await calls.fetchval("select next from agent.free_groups($1)", after)
