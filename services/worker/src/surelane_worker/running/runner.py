"""Run handlers: each attempt ends with one outcome, which goes to the settler."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from opentelemetry.trace import NonRecordingSpan, use_span

from surelane.codec import DamagedError, KeyDestroyedError, NoKeyError
from surelane.events import Event
from surelane.json_text import mended
from surelane.trace_context import traceparent_of
from surelane_service.logs import get_logger, shown
from surelane_service.telemetry.spans import failed, within
from surelane_worker.handling.asks import AskError
from surelane_worker.handling.attempt import Attempt, Services
from surelane_worker.handling.bounds import Debounce
from surelane_worker.handling.context import Context
from surelane_worker.handling.handler import Given, Handler, left_values
from surelane_worker.handling.outcomes import (
    COMPLETE,
    Anew,
    Backoff,
    Complete,
    Discard,
    Fail,
    Failure,
    Held,
    Outcome,
    Release,
    Retry,
    Snooze,
    outcome_of,
)
from surelane_worker.handling.records import (
    OutcomeError,
    ResultError,
    error_record,
    line_in,
    message_of,
)
from surelane_worker.handling.routes import FIRST, noted
from surelane_worker.handling.shapes import InvalidPayloadError
from surelane_worker.handling.steps import StepError
from surelane_worker.handling.threads import LOST
from surelane_worker.handling.undo import undo
from surelane_worker.leasing import Claim, Work
from surelane_worker.observing.tracing import Observer
from surelane_worker.running.coalescing import Coalescer
from surelane_worker.running.watching import uncancel, was_cancelled
from surelane_worker.settling import Settler
from surelane_worker.slack.client import final_reason
from surelane_worker.slack.limits import SlackBusyError
from surelane_worker.slack.tokens import NotInstalledError

INSTALL_PAUSE = 120.0
"""Longest pause, in seconds, until a worker looks again whether an event's workspace has installed the app.

An install wakes a thousand events. The look finds further ones, and an event that was being put off meanwhile.
"""
ANEW_OFTEN = 60
"""Successors of one event in :data:`ANEW_WITHIN` seconds, in one worker, after which the log warns."""
ANEW_WITHIN = 60.0
log = get_logger("surelane_worker.running.runner")


FINAL: dict[type[Exception], str] = {
    ResultError: "result_refused",  # the handler did its work, and would return the same again
    InvalidPayloadError: "invalid_payload",
    AskError: "ask_refused",
    KeyDestroyedError: "key_destroyed",
    DamagedError: "damaged",
}


class HandlerTimeoutError(Exception):
    """The handler took longer than its timeout."""


class Runner:
    """Run the handlers of claimed work and hand each claim's outcome to the settler."""

    def __init__(
        self, services: Services, handlers: Mapping[str, Handler], settler: Settler, observer: Observer
    ) -> None:
        self._services = services
        self._settings = services.settings
        self._handlers = handlers
        self._settler = settler
        self._metrics = observer.metrics
        self._tracing = observer.tracing
        self._backoff = Backoff(self._settings.backoff_base, self._settings.backoff_cap)
        timeout = self._settings.handler_timeout
        self._timeout = None if timeout is None else timeout.total_seconds()
        self._coalescer = Coalescer(services, settler)
        self._anew: Counter[str] = Counter()
        self._anew_since = 0.0

    async def run(self, work: Work) -> bool:
        """Run the handler of the next claims. Return whether another handler's claims follow, in its own slot."""
        try:
            if work.handler.debounce is not None:
                return await self._run_coalesced(work, work.handler.debounce)
            if not work.stopped and len(work.claims) == 1:
                await self._attempt(work.handler, work, work.claims)
                return False
            return await self._run_group(work)
        except Exception as error:
            log.exception("attempt crashed; its events are settled as failed", kind=work.handler.kinds[0])
            for claim in [claim for claim in work.claims if claim.outcome is None]:
                self._put_failure(claim, Fail(error), self._backoff.pause(claim.event.attempts))
            return False

    async def _run_group(self, work: Work) -> bool:
        handler, claims, variables = work.handler, work.next_run(self._handlers), copy_context()
        for step in [claims] if handler.grouped else [[claim] for claim in claims]:
            if step[0].outcome is not None:  # it was cancelled while it waited for the others
                continue
            if work.stopped or not await self._attempt(handler, work, step):
                self.release(work)
                return False
            if left_values(variables):
                break  # the slot runs the rest in a new task
        if work.stopped:
            self.release(work)
            return False
        if work.goes_on(self._handlers):
            return True
        if work.brings_more:
            self._settler.hurry()
        return False

    async def _run_coalesced(self, work: Work, debounce: Debounce) -> bool:
        """Run the next claims as one, and release the others: newer events may belong to their run."""
        try:
            if not work.stopped and all(claim.outcome is None for claim in work.claims):
                claims = work.next_run(self._handlers)
                closed = len(claims) < len(work.claims)
                run = await self._coalescer.gather(work, claims, debounce, closed=closed)
                if run is not None and not work.stopped:
                    work.head = run.claims[0]
                    await self._attempt(work.handler, work, run.claims, run.events)
        except asyncio.CancelledError:
            if work.stopped is None:
                raise
            uncancel()
        self.release(work)
        if work.brings_more:
            self._settler.hurry()
        return False

    def release(self, work: Work) -> None:
        """Release the claims that have no outcome yet; forget them if the lease is lost."""
        claims = [claim for claim in work.claims if claim.outcome is None]
        if work.stopped == LOST:
            self._settler.leases.drop(claims)
        else:
            for claim in claims:
                self._settler.put(claim, Release())

    async def _attempt(
        self, handler: Handler, work: Work, claims: Sequence[Claim], given: list[Event] | None = None
    ) -> bool:
        """Run the handler once for ``claims``. Return whether the group's next events may follow.

        ``given``: what it gets instead of the claims' events.
        """
        events = [claim.event for claim in claims]
        coalesced = handler.debounce is not None
        attempt = Attempt(
            self._services, events, work, grouped=handler.grouped and not coalesced, coalesced=coalesced
        )
        given = events if given is None else given
        began = time.time()
        if self._tracing is None or (span := self._tracing.process(given)) is None:
            outcome = await self._called(handler, work, attempt, given)
            if attempt.waited:
                outcome = self._concluded(outcome, attempt)
        else:
            for claim in claims:
                claim.span = span.get_span_context()
            with within(span):
                outcome = await self._called(handler, work, attempt, given)
                if attempt.waited:
                    outcome = self._concluded(outcome, attempt)
                span.set_attribute("surelane.outcome", outcome.name)
                if isinstance(outcome, Fail):
                    failed(span, type(outcome.error).__name__)
                elif work.stopped == LOST:
                    failed(span, "lease_lost")
        self._metrics.handled(events, began, time.time())
        return self._settle(work, claims, outcome, attempt)

    @staticmethod
    def _concluded(outcome: Outcome, attempt: Attempt) -> Outcome:
        suspend = attempt.steps.flow.suspend
        if suspend is not None and not isinstance(outcome, Release):
            return suspend  # also if the handler caught what was to end it
        if isinstance(outcome, Complete) and (unasked := attempt.steps.past.unasked()):
            attempt.log.warning("stored steps were not used; was one renamed?", steps=unasked)
        return outcome

    async def _called(self, handler: Handler, work: Work, attempt: Attempt, events: list[Event]) -> Outcome:
        given = events if handler.grouped else events[0]
        outcome: Outcome | None = None
        within: float | None = None
        limit: asyncio.Timeout | None = None
        try:
            await attempt.prepare(events)
            attempt.begin(work.task or asyncio.current_task())
            work.overdue = attempt.overdue
            try:
                handler = handler.for_event(events[0])
                if handler.version is None and events[0].notes is None:  # nearly every event
                    call = handler.call(given, Context(attempt))
                else:
                    handler = await self._of_version(handler, attempt)
                    call = self._call(handler, given, attempt)
                within = self._timeout if handler.timeout is None else handler.timeout
                if within is None:  # an empty timeout costs 2 µs per event
                    outcome = outcome_of(await call)
                    return outcome
                async with asyncio.timeout(within) as limit:
                    outcome = outcome_of(await call)
                    return outcome
            finally:
                await attempt.finish()
                work.overdue = bool
        except (SlackBusyError, NotInstalledError, NoKeyError) as error:
            return await self._put_off(attempt, events[0], error)
        except BaseException as error:  # noqa: BLE001 - no exception of a handler may end the worker
            if await was_cancelled(error, attempt, work):
                return Release()
            return await _ended_by(error, attempt, within, limit)
        finally:
            if handler.answers:
                attempt.conclude(completed=isinstance(outcome, Complete))
            if work.blocked is not None:  # operators see it as its progress, unless it tells them another
                if not attempt.progressing:
                    attempt.progress.say(f"blocked the event loop at {work.blocked}")
                work.blocked = None
            if attempt.progressing:
                await attempt.progress.end()

    def _call(self, handler: Handler, given: Given, attempt: Attempt) -> Awaitable[object]:
        if attempt.undoing and attempt.version == (handler.version or FIRST):
            event, replay = attempt.events[0], partial(handler.call, given, Context(attempt))
            most = event.max_attempts or self._settings.max_attempts
            return undo(attempt, replay, most, lambda: not self._goes_on(event, attempt))
        return handler.call(given, Context(attempt))

    @staticmethod
    async def _of_version(newest: Handler, attempt: Attempt) -> Handler:
        """Return the handler of a run. A run that has begun keeps the handler of its version."""
        event = attempt.events[0]  # which has the steps
        version = noted(event)
        own = newest.version or FIRST
        attempt.version = version or own
        again = own != FIRST and version is None and (event.claim > 1 or event.notes is not None)
        if again and await attempt.steps.past.all():
            attempt.version, attempt.steps.note_version = FIRST, None
        if attempt.version == own:
            return newest
        lacking = replace(newest, timeout=None, call=partial(_elsewhere, attempt.version))
        return newest.versions.get(attempt.version, lacking)

    async def _put_off(
        self, attempt: Attempt, event: Event, error: SlackBusyError | NotInstalledError | NoKeyError
    ) -> Snooze | Held | Discard:
        """Put off an event, without counting its attempt.

        While its workspace has not installed the app, it holds back its group, and past its deadline it ends. If this
        worker cannot decrypt it, it waits for another worker, or for the key.
        """
        if isinstance(error, SlackBusyError):
            attempt.log.info("Slack's rate limit is used up; the event is snoozed", seconds=error.after)
            return Snooze(error.after)
        if isinstance(error, NoKeyError):
            await attempt.notebooks.of(event).note_call("no_key", f"worker {self._settings.name}: {error}")
            told = "an event cannot be decrypted; it waits for a worker that can"
            attempt.log.error(told, reason=str(error))
            return Held(self._backoff.pause(1))
        deadline = (event.enqueued_at or event.event_ts) + self._settings.install_wait
        left = (deadline - datetime.now(UTC)).total_seconds()
        if left <= 0:
            return Discard("not_installed")
        owner, tokens = error.owner, self._services.tokens
        soon = None if tokens is None else await tokens.wait(event, owner, deadline)
        tell = attempt.log.info if tokens is None or tokens.is_news(owner) else attempt.log.debug
        tell("its workspace has not installed the app; the event waits", owner=owner.identity)
        waited = self._settings.install_wait.total_seconds() - left
        pause = max(self._backoff.pause(1), waited / 2) if soon is None else soon
        return Held(min(pause, INSTALL_PAUSE, left))

    def _settle(self, work: Work, claims: Sequence[Claim], outcome: Outcome, attempt: Attempt) -> bool:
        """Hand the outcome to the settler. Return whether the group's next events may follow."""
        followers: Sequence[Claim] = ()
        if work.head is not None:
            claims, followers = claims[:1], [claim for claim in claims[1:] if claim.outcome is None]
            outcome = Held(outcome.pause) if isinstance(outcome, Snooze) else outcome
        if outcome is COMPLETE:  # nearly every attempt
            for claim in claims:
                self._settler.put(claim, outcome, None, followers)
            return True
        if isinstance(outcome, Release):
            self.release(work)
            return False
        if isinstance(outcome, Failure):
            return self._fail(work, claims, outcome, attempt)
        try:
            argument = self._argument(claims, outcome)
        except Exception as error:  # noqa: BLE001 - serialising runs the handler's code, such as a subclass of dict
            if not isinstance(error, OutcomeError):
                error = OutcomeError(f"{type(outcome).__name__}: {type(error).__name__}: {message_of(error)}")
            return self._fail(work, claims, Fail(error), attempt)
        for claim in claims:
            self._settler.put(claim, outcome, argument, followers if outcome.ends_followers else ())
        if isinstance(outcome, Anew):
            self._note_anew(claims[0])
        return outcome.goes_on

    def _note_anew(self, claim: Claim) -> None:
        """Warn once a minute of an event that continues as a new one again and again: it may never wait."""
        now = time.monotonic()
        if now - self._anew_since > ANEW_WITHIN:
            self._anew_since = now
            self._anew.clear()
        event = claim.event
        chain = event.item_key or event.traceparent or event.kind
        self._anew[chain] += 1
        if self._anew[chain] == ANEW_OFTEN:
            told = "an event continues as a new one again and again; let its handler wait"
            log.warning(told, **claim.named, times=ANEW_OFTEN, seconds=ANEW_WITHIN)

    @staticmethod
    def _argument(claims: Sequence[Claim], outcome: Outcome) -> str | None:
        """Return what ``agent.settle`` gets with an outcome, as JSON text. The jobs in it continue the trace."""
        if outcome.of_one and len(claims) > 1:
            raise ResultError(f"{type(outcome).__name__} continues one event, not a group of events")
        span = claims[0].span
        with nullcontext() if span is None else use_span(NonRecordingSpan(span)):
            return outcome.argument()

    def _fail(self, work: Work, claims: Sequence[Claim], outcome: Failure, attempt: Attempt) -> bool:
        retry_in, final = outcome.pause, outcome.final
        if retry_in is None:
            retry_in = (work.handler.backoff or self._backoff).pause(attempt.attempts)
        if isinstance(outcome, Fail):
            reasons = (reason for sort, reason in FINAL.items() if isinstance(outcome.error, sort))
            final = next(reasons, None) or final_reason(outcome.error)
        ended = True
        for claim in claims:
            again = final is None and self._goes_on(claim.event, attempt)
            ended = ended and not again
            self._metrics.failed(claim.event.kind, retried=again)
            self._put_failure(claim, outcome, retry_in, final)
        self._log(attempt, outcome, retried=not ended)
        return ended

    def _put_failure(self, claim: Claim, outcome: Failure, retry_in: float, final: str | None = None) -> None:
        """Hand a failure to the settler. ``final``: the reason, for history, why no further attempt follows."""
        failed = outcome.raised, outcome.why, traceparent_of(claim.span)
        failure = {
            "error": error_record(claim.event, self._settings.name, *failed),
            "retry_in": retry_in,
            "final": final is not None,
            "reason": final,
            "max_attempts": self._settings.max_attempts,
        }
        self._settler.put(claim, outcome, mended(json.dumps(failure)))

    def _goes_on(self, event: Event, attempt: Attempt) -> bool:
        """Return whether attempts remain after this one."""
        return min(event.attempts, attempt.attempts) < (event.max_attempts or self._settings.max_attempts)

    @staticmethod
    def _log(attempt: Attempt, outcome: Failure, *, retried: bool) -> None:
        if not isinstance(outcome, Fail):
            attempt.log.info(outcome.told, retried=retried)
            return
        # The message may quote a user's text. It is in the event's error record, not in the log.
        error, where = type(outcome.error).__name__, line_in(outcome.error.__traceback__)
        attempt.log.error(
            outcome.told, error=error, where=where, retried=retried, exc_info=shown(outcome.error)
        )


async def _elsewhere(version: str, _given: object, _context: Context) -> Held:
    """Handle an event whose version this worker lacks."""
    return Held(0, begun=False, version=version)


async def _ended_by(
    error: BaseException, attempt: Attempt, within: float | None, limit: asyncio.Timeout | None
) -> Fail | Release | Retry:
    if await attempt.has_old_token(error):
        return Retry(0, "the token was replaced meanwhile")
    if (
        isinstance(error, asyncio.CancelledError) and attempt.work.stopped is not None
    ):  # else the handler did it
        uncancel()
        return Release()
    if isinstance(error, TimeoutError) and limit is not None and limit.expired():
        late = HandlerTimeoutError(f"the handler took longer than {within:g} s")
        # What cancelled the handler has passed through it: its traceback names the line that was awaited.
        return Fail(late.with_traceback((error.__cause__ or error).__traceback__))
    return Fail(error.__cause__ or error if isinstance(error, StepError) else error)
