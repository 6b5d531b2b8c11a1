"""Run the doctor for all callers: one examination at a time, kept for a minute."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel, Field

from surelane_operator.doctor import Finding, examine_at

FRESH = timedelta(minutes=1)
"""For so long an examination is shown to all callers that do not ask for a new one."""
AGAIN = timedelta(seconds=5)
"""A new one is not made sooner, however often callers ask."""

Examine = Callable[[str], Awaitable[Sequence[Finding]]]


class Examination(BaseModel):
    """The doctor's findings."""

    at: datetime = Field(description="when the doctor looked")
    findings: list[Finding]

    @property
    def age(self) -> timedelta:
        """Return the time since the doctor looked."""
        return datetime.now(UTC) - self.at


class Examinations:
    """The latest examination, shared by all callers."""

    def __init__(self, dsn: str, examine: Examine = examine_at) -> None:
        """``examine`` runs the checks on the database at ``dsn``."""
        self._dsn = dsn
        self._examine = examine
        self._last: Examination | None = None
        self._running: asyncio.Task[Examination] | None = None

    async def latest(self) -> Examination:
        """Return an examination that is at most a minute old."""
        return await self._at_most(FRESH)

    async def again(self) -> Examination:
        """Return an examination that is at most five seconds old."""
        return await self._at_most(AGAIN)

    async def _at_most(self, age: timedelta) -> Examination:
        if self._last is not None and self._last.age < age:
            return self._last
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        # A caller that goes away does not end the examination that others wait for.
        return await asyncio.shield(self._running)

    async def _run(self) -> Examination:
        try:
            findings = await self._examine(self._dsn)
            self._last = Examination(at=datetime.now(UTC), findings=list(findings))
            return self._last
        finally:
            self._running = None
