"""Lease calls of Slack's rate limits, which all workers share. ``013-slack-limit.sql`` says what the functions do."""

from collections.abc import Sequence
from dataclasses import dataclass

from surelane.calls import Calls


@dataclass(frozen=True, slots=True)
class LeaseWanted:
    """Calls that a worker wants to lease.

    Attributes:
        name: the limit's.
        calls, window: it allows so many calls per so many seconds.
        wanted: how many will be made as soon as they may.
        spare, keep: how many more to have at hand, for so many seconds.
    """

    name: str
    calls: int
    window: float
    wanted: int
    spare: int
    keep: float


@dataclass(frozen=True, slots=True)
class Leased:
    """The calls that a worker has leased.

    Attributes:
        waits: the seconds until each wanted call; fewer than wanted if others begin too late.
        at_hand: how many calls may be made at any time.
        later: the seconds until the first call that begins too late.
        workers: the number of workers alive.
    """

    waits: Sequence[float]
    at_hand: int
    later: float | None
    workers: int


class SlackLimits:
    """The SQL functions about Slack's rate limits."""

    _database: Calls

    async def lease_slack_calls(self, wanted: Sequence[LeaseWanted], within: float) -> list[Leased | None]:
        """Lease calls that begin ``within`` seconds; ``None`` for a limit that another transaction has locked."""
        rows = await self._database.fetch(
            "select * from agent.lease_slack_calls($1, $2, $3, $4, $5, $6, $7)",
            [each.name for each in wanted],
            [each.calls for each in wanted],
            [each.window for each in wanted],
            [each.wanted for each in wanted],
            [each.spare for each in wanted],
            [each.keep for each in wanted],
            within,
        )
        leased: list[Leased | None] = [None] * len(wanted)
        for row in rows:
            leased[row["ordinal"] - 1] = Leased(row["waits"], row["at_hand"], row["later"], row["workers"])
        return leased

    async def delay_slack_calls(self, name: str, calls: int, window: float, delay: float) -> bool:
        """Let no call of a limit begin for ``delay`` seconds. Return false if another transaction has it locked."""
        delayed: bool = await self._database.fetchval(
            "select agent.delay_slack_calls($1, $2, $3, $4)", name, calls, window, delay
        )
        return delayed
