"""Named schedules: the rows of ``agent.cron``, and how workers fire those that are due."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from surelane.calls import Calls
from surelane.jobs import Priority
from surelane.json_text import json_text
from surelane_service.cron import CatchUp, Cron, Overlap


@dataclass(frozen=True, slots=True)
class DueCron:
    """A schedule that is due.

    Attributes:
        next_at: when the earliest time that has not been fired was to fire.
        now: the database's time. A worker's own clock decides nothing.
    """

    name: str
    kind: str
    schedule: str
    time_zone: str
    catch_up: str
    jitter: timedelta
    next_at: datetime
    now: datetime


class Schedules:
    """The calls about named schedules that the worker's and the operator's clients share."""

    _database: Calls

    async def set_cron(
        self,
        name: str,
        *,
        kind: str,
        schedule: str,
        next_at: datetime | None = None,
        payload: Mapping[str, Any] | None = None,
        time_zone: str = "UTC",
        catch_up: CatchUp = "one",
        paused: bool | None = False,
        priority: Priority = 1,
        overlap: Overlap = "allow",
        jitter: timedelta = timedelta(0),
    ) -> None:
        """Create or change a schedule. An unchanged one keeps its next firing, so declaring it again skips none.

        Args:
            name, schedule, time_zone, jitter: as those of :class:`Cron`.
            kind, payload, priority: of its jobs. They have ``cron`` (the name) and ``scheduled_at`` besides.
            next_at: its first firing; by default the first one after now.
            catch_up, overlap: see :data:`CatchUp` and :data:`Overlap`.
            paused: a paused schedule fires nothing; ``None`` keeps an existing schedule's state.

        Raises:
            ValueError: the schedule or the time zone cannot be read.
            InvalidInput: another value cannot be stored.
        """
        await self._database.call(
            "set_cron",
            name,
            kind,
            schedule,
            next_at or Cron(schedule, time_zone, jitter, name).next_firing(datetime.now(UTC)),
            await self._cron_payload(payload or {}),
            time_zone,
            str(catch_up),
            paused,
            priority,
            overlap,
            jitter,
        )

    async def _cron_payload(self, payload: Mapping[str, Any]) -> str:
        """Return a schedule's payload as it is stored, JSON text."""
        return json_text(payload)

    async def delete_cron(self, name: str) -> bool:
        """Delete a schedule; return false when there is none of that name."""
        return bool(await self._database.call("delete_cron", name))

    async def next_cron(self) -> float | None:
        """Return the seconds until the next schedule becomes due; ``None`` where there is none."""
        return await self._database.call("next_cron")

    async def due_cron(self) -> list[DueCron]:
        """Return the schedules that are due, the longest overdue first."""
        rows = await self._database.fetch(
            "select name, kind, schedule, time_zone, catch_up, jitter, next_at, now_at from agent.due_cron()"
        )
        return [DueCron(*row) for row in rows]

    async def fire_cron(
        self, name: str, due: datetime, times: Sequence[datetime], following: datetime
    ) -> int:
        """Enqueue a schedule's jobs if it is still due at ``due``: of all the workers that try, one succeeds.

        ``due`` is :attr:`DueCron.next_at`. Each of ``times`` fires one job; ``following`` is when it is due next.

        Returns:
            The number of jobs that were enqueued.
        """
        return await self._database.call("fire_cron", name, due, times, following)
