"""Watch what runs: stop handlers whose events are cancelled, and name the one that blocks the event loop.

A notification reports a request to cancel. Each session that listens costs the database a transaction per notification
of any channel. So a worker listens only while a handler has run for a moment, and asks about all its claims as it
begins.

An event whose thread in Slack is gone is cancelled, too: the message that it answers was deleted, so no one waits for
it. It does not fail: no failure hook should speak to the channel, and no alert tell that a person deleted a question.
"""

import asyncio
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from surelane.errors import DatabaseRefused, DatabaseUnavailable
from surelane_service.engine import CANCEL_GRACE, Engine
from surelane_service.logs import get_logger
from surelane_service.pool import CANCELS, Listener
from surelane_worker.handling.attempt import Attempt, Stoppable
from surelane_worker.handling.outcomes import Release
from surelane_worker.handling.records import LONGEST_TRACEBACK, line_in, traceback_of
from surelane_worker.handling.threads import CANCELLED
from surelane_worker.leasing import Claim, Leases, Work
from surelane_worker.observing.metrics import Metrics
from surelane_worker.settling import Settler
from surelane_worker.slack.client import ThreadGoneError

LONG = 0.2
"""Seconds between two looks at the running handlers. The worker listens if two looks find the same handler."""
LATE = CANCEL_GRACE.total_seconds() / 2
"""Seconds after a cancel at which threads that still run keep the claim."""

LOOK = 0.25
"""Seconds between two looks of the thread, and between two beats of the event loop."""
LOOKS = 4
"""Looks without a beat, about a second, until the handler is named. A process that was stopped makes none."""
BLOCKED = LOOK * LOOKS

log = get_logger("surelane_worker.running.watching")


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
            busy = loop.time() - busy_at < 10.0  # then the worker stops listening
            with suppress(DatabaseUnavailable, DatabaseRefused):  # the claimer logs an outage
                if self.notifications:
                    turns = busy != self.listener.hears(CANCELS)
                    if turns and await self.listener.listen(wanted=busy, channel=CANCELS):
                        self.heard("")
                # Behind a transaction pooler, where no session can listen.
                elif held and busy and loop.time() - asked_at >= 1.0:
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


async def was_cancelled(error: BaseException, attempt: Attempt, work: Stoppable) -> bool:
    """Cancel the event whose thread is gone, if a handler's error says so. Return whether its attempt is over."""
    gone = _thread_gone(error)
    if gone is None or work.stopped is not None or attempt.undoing:
        return False
    fence, cancel = attempt.fence(attempt.events[0]), attempt.services.engine.cancel
    why = "the message that it answers was deleted"
    try:
        for pause in (0.05, 0.2, 1.0, 3.0):  # while another transaction has locked the event
            answer = await fence.patiently(cancel, gone.identity, by="surelane", reason=why)
            if answer != "busy":
                attempt.log.info("the event is cancelled: the message that it answers was deleted")
                return answer is not None
            await asyncio.sleep(pause)
    except asyncio.CancelledError:  # the request to cancel may stop this attempt
        if work.stopped is None:
            raise
        uncancel()
        return True
    return False


def uncancel() -> None:
    """Revoke the cancellation that stopped a handler: its task must still release the other claims."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _thread_gone(error: BaseException) -> ThreadGoneError | None:
    """Return the error, or the one that caused it, if it says that an event's thread is gone."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_thread_gone, error.exceptions)), None)
    found = error if isinstance(error, ThreadGoneError) else error.__cause__
    return found if isinstance(found, ThreadGoneError) else None


class Watchdog:
    """Warns when the event loop is blocked, from a thread, and says when it goes on and how long that took.

    C code that keeps the interpreter's lock stops the thread, too: then only the length is known.
    """

    def __init__(self, works: Callable[[], Iterable[Work]], metrics: Metrics) -> None:
        """``works`` returns the work that runs."""
        self._works = works
        self._metrics = metrics
        self._beats = 0
        self._named = False

    async def run(self) -> None:
        """Watch the event loop of the current thread until cancelled."""
        stop = threading.Event()
        watched = asyncio.get_running_loop(), threading.get_ident(), stop
        threading.Thread(target=self._watch, args=watched, name="watchdog", daemon=True).start()
        try:
            while True:
                began = monotonic()
                await asyncio.sleep(LOOK)
                self._beats += 1
                if (seconds := monotonic() - began - LOOK) >= BLOCKED or self._named:
                    self._named = False
                    self._metrics.loop_blocked += seconds
                    log.warning("the event loop goes on", seconds=round(seconds, 2))
        finally:
            stop.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int, stop: threading.Event) -> None:
        seen = looks = 0
        while not stop.wait(LOOK):
            looks = looks + 1 if self._beats == seen else 0
            seen = self._beats
            if looks == LOOKS:
                self._name(loop, thread)

    def _name(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        """Log what runs. Without a task, the event loop itself waits for a processor."""
        task = asyncio.current_task(loop)
        if task is None:
            return
        found = traceback_of(thread, getattr(task.get_coro(), "cr_frame", None))
        place, stack = line_in(found), "".join(traceback.format_tb(found))[-LONGEST_TRACEBACK:]
        named: dict[str, Any] = {}
        for work in self._works():
            if work.task is task:
                named, work.blocked = work.named, place or "an unknown line"
        self._named = True
        log.warning("a handler blocks the event loop", **named, where=place, stack=stack)
