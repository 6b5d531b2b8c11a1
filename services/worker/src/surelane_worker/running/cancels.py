"""Cancel running handlers when somebody cancels their events.

A notification reports the request. Each session that listens costs the database a transaction per notification of any
channel. So a worker listens only while a handler has run for a moment, and asks about all its claims as it begins.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from surelane.errors import DatabaseRefused, DatabaseUnavailable
from surelane_service.engine import CANCEL_GRACE, Engine
from surelane_service.logs import get_logger
from surelane_service.pool import CANCELS, Listener
from surelane_worker.handling.outcomes import Release
from surelane_worker.handling.threads import CANCELLED
from surelane_worker.leasing import Claim, Leases
from surelane_worker.settling import Settler

LONG = 0.2
"""Seconds between two looks at the running handlers. The worker listens if two looks find the same handler."""
QUIET = 10.0
"""Seconds without such a handler after which the worker stops listening."""
LATE = CANCEL_GRACE.total_seconds() / 2
"""Seconds after a cancel at which threads that still run keep the claim."""
POLL = 1.0
"""Seconds between two questions behind a transaction pooler, where no session can listen."""

log = get_logger("surelane_worker.running.cancels")


@dataclass(eq=False)
class Cancels:
    """Listens for requests to cancel, and stops the handlers of these events."""

    engine: Engine
    listener: Listener
    leases: Leases
    settler: Settler
    notifications: bool

    def __post_init__(self) -> None:
        self._heard: set[int] | None = set()
        """The ids of claims to ask about; ``None``: all claims."""
        self._some = asyncio.Event()
        self.listener.hear(CANCELS, self.heard)

    def heard(self, payload: str) -> None:
        """Take a notification: ids, or an empty text if there were too many."""
        if not payload:
            self._heard = None
        elif self._heard is not None:
            self._heard.update(map(int, payload.split()))
        self._some.set()

    async def run(self) -> None:
        """Listen while handlers run for long, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep())
            group.create_task(self._answer())

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        seen: set[Claim] = set()
        busy_at = asked_at = float("-inf")
        while True:
            await asyncio.sleep(LONG)
            held = {claim for claim in self.leases.held if claim.outcome is None}
            if not seen.isdisjoint(held):
                busy_at = loop.time()
            seen = held
            busy = loop.time() - busy_at < QUIET
            with suppress(DatabaseUnavailable, DatabaseRefused):  # the claimer logs an outage
                if self.notifications:
                    turns = busy != self.listener.hears(CANCELS)
                    if turns and await self.listener.listen(wanted=busy, channel=CANCELS):
                        self.heard("")
                elif held and busy and loop.time() - asked_at >= POLL:
                    asked_at = loop.time()
                    self.heard("")

    async def _answer(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            ids, self._heard = self._heard, set()
            running = [claim for claim in self.leases.held if claim.outcome is None and not claim.cancelled]
            asked = [claim.event for claim in running if ids is None or claim.event.id in ids]
            if not asked:
                continue
            try:
                cancelled = await self.engine.cancelled_claims([(event.id, event.claim) for event in asked])
            except (DatabaseUnavailable, DatabaseRefused):
                self._heard = None
                asyncio.get_running_loop().call_later(LONG, self._some.set)
                continue
            self._cancel(claim for claim in running if claim.event.id in cancelled)

    def _cancel(self, claims: Iterable[Claim]) -> None:
        ends = asyncio.get_running_loop().time() + CANCEL_GRACE.total_seconds()
        for claim in claims:
            work = self.leases.held.get(claim)
            if work is None or claim.outcome is not None:
                continue
            log.info("event cancelled", **claim.named)
            claim.cancelled = True
            claim.lease_ends = min(claim.lease_ends, ends)
            if work.is_later(claim):
                self.settler.put(claim, Release())
            else:
                work.stop(CANCELLED)
                asyncio.get_running_loop().call_later(LATE, self._wait_for_threads, claim)

    def _wait_for_threads(self, claim: Claim) -> None:
        """Keep the claim of a cancelled handler whose threads still run, up to another lease."""
        work = self.leases.held.get(claim)
        if work is not None and claim.outcome is None and work.overdue():
            self._extending = asyncio.create_task(self.leases.outlast(claim))
