"""Runs handlers: one claim, one outcome."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.context import attach, detach, get_current
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, set_span_in_context

from surelane.events import Event
from surelane.trace_context import traceparent_of
from surelane_service.engine import Completion, Failure, FanOutText
from surelane_service.logs import get_logger
from surelane_service.telemetry.spans import failed, running
from surelane_worker.handling.context import Context, Services
from surelane_worker.handling.handler import Handler
from surelane_worker.handling.outcomes import (
    NOTHING_TO_KEEP,
    Await,
    Discard,
    Done,
    FanOut,
    Outcome,
    Retry,
    Snooze,
    duration,
    moment,
    outcome_of,
)
from surelane_worker.handling.retry import Backoff
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.tracing import Tracing
from surelane_worker.running.work import LOST, Claim, Work
from surelane_worker.settling.records import (
    OutcomeError,
    ResultError,
    error_text,
    message_of,
    plain,
    result_text,
    where,
)
from surelane_worker.settling.settler import Settler
from surelane_worker.settling.settles import Awaiting, Continued, Released, Settle, Snoozed

FinalReason = Callable[[BaseException], str | None]
"""Says why no further attempt can mend an error; ``None`` where one may."""

log = get_logger("surelane_worker.running.runner")


class HandlerTimeoutError(Exception):
    """The handler took longer than its timeout."""


@dataclass(frozen=True, slots=True)
class Raised:
    """What an attempt came to whose handler raised an exception."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Stopped:
    """What an attempt came to whose handler was cancelled: its lease was lost, or the worker ends."""


Ending = Outcome | Raised | Stopped


class Executor:
    """Runs the handlers of claimed work and hands each claim's settle to the settler."""

    def __init__(
        self,
        services: Services,
        handlers: Mapping[str, Handler],
        settler: Settler,
        backoff: Backoff,
        metrics: Metrics,
        tracing: Tracing | None,
        final_reason: FinalReason,
    ) -> None:
        self._services = services
        self._handlers = handlers
        self._settler = settler
        self._backoff = backoff
        self._metrics = metrics
        self._tracing = tracing
        self._final_reason = final_reason
        self._max_attempts = services.settings.max_attempts
        self._worker = services.settings.name

    async def run(self, work: Work) -> bool:
        """Works off the next run of a piece of work; returns whether another run follows, in its own handler's slot.

        Every claim of it is settled, or forgotten where its lease is lost.
        """
        try:
            if not work.stopped and len(work.claims) == 1:
                await self._attempt(work.handler, work, work.claims)
                return False
            return await self._run_group(work)
        except Exception as error:
            log.exception("attempt crashed", kind=work.handler.kinds[0])
            self._fail_unsettled(work, error)
            return False

    async def _run_group(self, work: Work) -> bool:
        handler, claims = work.handler, work.next_run(self._handlers)
        for step in [claims] if handler.grouped else [[claim] for claim in claims]:
            if work.stopped or not await self._attempt(handler, work, step):
                self.give_back(work)
                return False
        if work.stopped:
            self.give_back(work)
            return False
        if work.goes_on(self._handlers):
            return True
        if work.brings_more:
            self._settler.hurry()
        return False

    def give_back(self, work: Work) -> None:
        """Releases the claims of a piece of work that are not settled yet; forgets them where the lease is lost."""
        claims = [claim for claim in work.claims if not claim.settling]
        if work.stopped == LOST:
            self._settler.forget(claims)
        else:
            for claim in claims:
                self._settler.put(claim, Released())

    async def _attempt(self, handler: Handler, work: Work, claims: Sequence[Claim]) -> bool:
        """Runs the handler once for ``claims``; returns whether the entity's next events may follow."""
        events = [claim.event for claim in claims]
        context = Context(self._services, events, work)
        began = time.time()
        if self._tracing is None:
            ending = await self._run(handler, work, context, events)
        else:
            span = self._tracing.process(events)
            for claim in claims:
                claim.span = span.get_span_context()
            ending = await self._run_traced(span, handler, work, context, events)
        self._count(events, began)
        return self._settle(work, claims, ending, context)

    async def _run(self, handler: Handler, work: Work, context: Context, events: list[Event]) -> Ending:
        given = events if handler.grouped else events[0]
        try:
            if handler.timeout is None:
                return outcome_of(await handler.call(given, context))
            async with asyncio.timeout(handler.timeout) as limit:
                return outcome_of(await handler.call(given, context))
        except asyncio.CancelledError as error:
            if work.stopped is None:  # the handler's own doing
                return Raised(error)
            _uncancel()
            return Stopped()
        except TimeoutError as error:
            if handler.timeout is not None and limit.expired():
                return Raised(HandlerTimeoutError(f"the handler took longer than {handler.timeout:g} s"))
            return Raised(error)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises ends its attempt, not the worker
            return Raised(error)

    async def _run_traced(
        self, span: Span, handler: Handler, work: Work, context: Context, events: list[Event]
    ) -> Ending:
        with running(span):
            ending = await self._run(handler, work, context, events)
            span.set_attribute("surelane.outcome", type(ending).__name__.lower())
            if isinstance(ending, Raised):
                failed(span, type(ending.error).__name__)
            elif work.stopped == LOST:
                failed(span, "lease_lost")
        return ending

    def _count(self, events: Sequence[Event], began: float) -> None:
        ended = time.time()
        metrics = self._metrics
        metrics.process.add(events[0].kind, ended - began)
        for event in events:
            happened = event.event_ts.timestamp()
            metrics.until_started.add(event.kind, max(began - happened, 0.0))
            metrics.until_finished.add(event.kind, max(ended - happened, 0.0))

    def _settle(self, work: Work, claims: Sequence[Claim], ending: Ending, context: Context) -> bool:
        if ending is NOTHING_TO_KEEP:  # nearly every attempt
            for claim in claims:
                self._settler.put(claim, Completion(claim.event.id, claim.event.claim))
            return True
        if isinstance(ending, Stopped):
            self.give_back(work)
            return False
        if isinstance(ending, Discard | Retry | Raised):
            return self._fail(claims, ending, context)
        try:
            settles = self._settles(claims, ending)
        except OutcomeError as error:
            return self._fail(claims, Raised(error), context)
        except Exception as error:  # noqa: BLE001 - serialising runs the handler's code, such as a subclass of dict
            refused = OutcomeError(f"{type(ending).__name__}: {type(error).__name__}: {message_of(error)}")
            return self._fail(claims, Raised(refused), context)
        for claim, settle in zip(claims, settles, strict=True):
            self._settler.put(claim, settle)
        return True

    def _settles(self, claims: Sequence[Claim], ending: Done | Snooze | Await | FanOut) -> list[Settle]:
        """What is sent for a claim each: plain data, so that no outcome fails later than its attempt."""
        match ending:
            case Done(result):
                text = None if result is None else result_text(result)
                return [Completion(claim.event.id, claim.event.claim, text) for claim in claims]
            case Snooze(pause):
                return [Snoozed(duration(pause))] * len(claims)
            case Await(until):
                return [Awaiting(moment(until))] * len(claims)
            case FanOut(children, then, result):
                if len(claims) > 1:
                    raise ResultError("FanOut goes on from one event, not from a group")
                with _within(claims[0].span):
                    return [Continued(FanOutText.of(children, then), result_text(result))]

    def _fail(self, claims: Sequence[Claim], ending: Discard | Retry | Raised, context: Context) -> bool:
        pause = self._backoff.pause(max(claim.event.attempts for claim in claims))
        failures = [self._failure(claim, ending, pause) for claim in claims]
        ended = True
        for claim, failure in zip(claims, failures, strict=True):
            again = not failure.final and claim.event.attempts < (
                claim.event.max_attempts or self._max_attempts
            )
            ended = ended and not again
            self._metrics.failed(claim.event.kind, retried=again)
            self._settler.put(claim, failure)
        self._log(context, ending, retried=not ended)
        return ended

    def _fail_unsettled(self, work: Work, error: Exception) -> None:
        for claim in [claim for claim in work.claims if not claim.settling]:
            record = error_text(claim.event, self._worker, error)
            self._settler.put(claim, Failure(*claim.fence, record, self._backoff.pause(claim.event.attempts)))

    def _failure(self, claim: Claim, ending: Discard | Retry | Raised, pause: float) -> Failure:
        event, span = claim.event, traceparent_of(claim.span)
        match ending:
            case Discard(given):
                reason = plain(message_of(given))
                error = error_text(
                    event, self._worker, None, kind="Discard", message=reason, traceparent=span
                )
                return Failure(event.id, event.claim, error, final=True, reason=reason)
            case Retry(after, given):
                reason = message_of(given)
                error = error_text(event, self._worker, None, kind="Retry", message=reason, traceparent=span)
                return Failure(event.id, event.claim, error, retry_in=duration(after).total_seconds())
            case Raised(raised):
                final = self._final(raised)
                error = error_text(event, self._worker, raised, traceparent=span)
                return Failure(event.id, event.claim, error, pause, final=final is not None, reason=final)

    def _final(self, raised: BaseException) -> str | None:
        if isinstance(raised, ResultError):
            # The handler did its work: repeating it would not change what it returns.
            return "result_refused"
        reason = self._final_reason(raised)
        return None if reason is None else plain(reason)

    @staticmethod
    def _log(context: Context, ending: Discard | Retry | Raised, *, retried: bool) -> None:
        match ending:
            case Raised(error):
                # Without the message, which may quote what somebody wrote; it is in the event's error record.
                context.log.error(
                    "handler failed", error=type(error).__name__, where=where(error), retried=retried
                )
            case Discard():
                context.log.info("event discarded")
            case Retry():
                context.log.info("handler asked for another attempt", retried=retried)


def _uncancel() -> None:
    """Takes back the cancellation that stopped a handler: its task still has to give the rest back."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


@contextmanager
def _within(span: SpanContext | None) -> Iterator[None]:
    """What is serialised in the block belongs to the span of the attempt that asked for it."""
    current = get_current()
    token = attach(current if span is None else set_span_in_context(NonRecordingSpan(span), current))
    try:
        yield
    finally:
        detach(token)
