"""Named schedules: the rows of ``agent.cron``, and how workers fire those that are due."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from surelane.calls import Calls
from surelane.jobs import Priority
from surelane.json_text import json_text
from surelane_service.cron import CatchUp, Cron


@dataclass(frozen=True, slots=True)
class DueCron:
    """A schedule that is due.

    Attributes:
        next_at: the earliest time that has not been fired.
        now: the database's time. A worker's own clock decides nothing.
    """

    name: str
    kind: str
    schedule: str
    time_zone: str
    catch_up: CatchUp
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
    ) -> None:
        """Create or change a schedule. An unchanged one keeps its next firing, so declaring it again skips none.

        Args:
            name: the schedule's name.
            kind: the kind of the jobs it enqueues.
            schedule: five cron fields.
            next_at: its first firing; by default the first one after now.
            payload: the payload of its jobs, besides ``cron`` (the name) and ``scheduled_at``.
            time_zone: the zone in which the fields are read.
            catch_up: which of the times that were missed while no worker ran are fired.
            paused: a paused schedule fires nothing; ``None`` keeps an existing schedule's state.
            priority: of its jobs.

        Raises:
            ValueError: the schedule or the time zone cannot be read.
            InvalidInput: another value cannot be stored.
        """
        await self._database.execute(
            "select agent.set_cron($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            name,
            kind,
            schedule,
            next_at or Cron(schedule, time_zone).next_after(datetime.now(UTC)),
            await self._cron_payload(payload or {}),
            time_zone,
            catch_up,
            paused,
            priority,
        )

    async def _cron_payload(self, payload: Mapping[str, Any]) -> str:
        """Return a schedule's payload as it is stored, JSON text."""
        return json_text(payload)

    async def delete_cron(self, name: str) -> bool:
        """Delete a schedule; return false when there is none of that name."""
        deleted: bool = await self._database.fetchval("select agent.delete_cron($1)", name)
        return deleted

    async def next_cron(self) -> float | None:
        """Return the seconds until the next schedule becomes due; ``None`` where there is none."""
        seconds: float | None = await self._database.fetchval("select agent.next_cron()")
        return seconds

    async def due_cron(self) -> list[DueCron]:
        """Return the schedules that are due, the longest overdue first."""
        rows = await self._database.fetch("select * from agent.due_cron()")
        return [
            DueCron(
                row["name"],
                row["kind"],
                row["schedule"],
                row["time_zone"],
                row["catch_up"],
                row["next_at"],
                row["now_at"],
            )
            for row in rows
        ]

    async def fire_cron(
        self, name: str, due: datetime, times: Sequence[datetime], following: datetime
    ) -> int:
        """Enqueue a schedule's jobs if it is still due at ``due``: of all the workers that try, one succeeds.

        Args:
            name: the schedule.
            due: :attr:`DueCron.next_at`.
            times: the times to fire, one job each.
            following: when it is due next.

        Returns:
            The number of jobs that were enqueued.
        """
        fired: int = await self._database.fetchval(
            "select agent.fire_cron($1, $2, $3, $4)", name, due, times, following
        )
        return fired
