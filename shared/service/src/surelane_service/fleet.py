"""What the workers of a fleet tell one another: who lives, what it handles, and who answers notifications."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from surelane.calls import Calls
from surelane.json_text import json_text

POSITIONS = 2
"""Positions of the workers that handle the same kinds; the database's number, too (``agent.take_position``)."""


@dataclass(frozen=True, slots=True)
class WorkerSessions:
    """One look at the sessions of all workers. ``known``: how many there are, lost ones included.

    ``lost``: the workers whose session is gone and that have not been taken for dead, with the session's key.
    """

    lost: Sequence[tuple[str, int]]
    known: int
    server_since: datetime


class Fleet:
    """The SQL functions by which workers know of each other."""

    calls: Calls

    async def open_session(self, name: str, version: str, *, starts: bool = True) -> bool:
        """Open a worker's session on this connection, by which others see that it lives until the connection ends.

        Return false where another transaction has the worker's row locked: call it again. ``starts``: the process has
        had no session before, so claims of a dead process of the same name end.
        """
        return await self.calls.call("open_session", name, version, starts)

    async def locked_claims(self) -> int:
        """Return how many claims of a predecessor were locked as this connection opened its session."""
        (row,) = await self.calls.fetch(
            "select coalesce(nullif(current_setting('surelane.locked', true), ''), '0')::int4"
        )
        return int(row[0])

    async def introduce_worker(
        self,
        name: str,
        version: str,
        kinds: Sequence[str],
        ordered: Sequence[str] | None,
        slots: tuple[int, int] | None = None,
    ) -> bool:
        """Put a worker on the list before it claims, because ingest waits for the answers of listed workers alone.

        Return false where another transaction has the worker's row locked: call it again.

        Args:
            ordered: the commands and interactions that keep their thread's order; ``None``: it handles none at all.
            slots: how many handlers it runs at once, and how many besides for commands and interactions.
        """
        given = name, version, kinds, ordered, *(slots or (None, None))
        return await self.calls.call("introduce_worker", *given)

    async def watch_sessions(self, name: str) -> WorkerSessions:
        """Look which workers have lost their sessions, as worker ``name``."""
        (row,) = await self.calls.rows("watch_sessions", name)
        lost = list(zip(row["names"], row["sessions"], strict=True))
        return WorkerSessions(lost, row["known"], row["server_since"])

    async def rescue_worker(
        self, worker: str, session: int, *, lost_for: timedelta, by: str
    ) -> tuple[int, int]:
        """Take a worker for dead whose session has been gone for ``lost_for``, and end its claims.

        Return how many ended, and how many remain because another transaction has them locked: call it again.
        """
        (row,) = await self.calls.rows("rescue_worker", worker, session, lost_for, by)
        return row["rescued"], row["remaining"]

    async def release_unknown(
        self, name: str, known: Sequence[tuple[int, int]], before: datetime | None = None
    ) -> tuple[datetime, int]:
        """Release a worker's claims made before a moment, by default now, except the ``known`` (event, claim) pairs.

        Return that moment, and how many claims were released.
        """
        ids, claims = zip(*known, strict=True) if known else ((), ())
        (row,) = await self.calls.rows("release_unknown", name, ids, claims, before)
        return row["before"], row["released"]

    async def announce_worker(
        self,
        name: str,
        kinds: Sequence[str],
        version: str,
        clock_offset: timedelta | None = None,
        max_attempts: int | None = None,
        of_kinds: Mapping[str, int] | None = None,
    ) -> None:
        """Record that a worker is alive, the kinds that it handles, and how far its clock is ahead.

        ``max_attempts`` becomes the maximum of its kinds' events that have none; ``of_kinds`` has those of some kinds.
        """
        given = name, kinds, version, clock_offset, max_attempts, json_text(of_kinds or {})
        await self.calls.call("announce_worker", *given)

    async def declare_attempts(
        self, name: str, kinds: Sequence[str], max_attempts: int, of_kinds: Mapping[str, int]
    ) -> None:
        """Record the maximum of the kinds' events, as :meth:`announce_worker` does."""
        given = name, kinds, max_attempts, json_text(of_kinds)
        await self.calls.call("declare_attempts", *given)

    async def order_kinds(self, name: str, ordered: Sequence[str]) -> None:
        """Record which of a worker's commands and interactions keep their thread's order; the others need not."""
        await self.calls.call("order_kinds", name, ordered)

    async def declare_limits(
        self, name: str, kinds: Sequence[str], limits: Mapping[str, Mapping[str, Any]]
    ) -> list[str]:
        """Record the limits of a worker's kinds; the others have none. Return the kinds whose limit changed."""
        return await self.calls.call("declare_limits", name, kinds, json_text(limits))

    async def retire_worker(self, name: str) -> None:
        """Record that a worker has ended, unless claims stand under its name: its lost session ends those."""
        await self.calls.call("retire_worker", name)

    async def take_position(self, kinds: Sequence[str], held: int | None) -> int | None:
        """Take the first free position before ``held``, on this connection. Return the position it holds then."""
        return await self.calls.call("take_position", kinds, held)

    async def leave_position(self, kinds: Sequence[str], held: int) -> None:
        """Give up a position of this connection. Another worker that listens takes it at once."""
        await self.calls.call("leave_position", kinds, held)

    async def pass_on(self) -> None:
        """Tell the workers that listen that the first of them has no free slot."""
        await self.calls.call("pass_on")
