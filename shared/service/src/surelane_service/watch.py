"""Publish the queue's figures as gauges, and warn when a session or slot holds back vacuum.

Every service runs one. The database measures the figures once for all replicas; reading them costs two pages.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta

from opentelemetry import metrics
from opentelemetry.metrics import Observation

from surelane.errors import DatabaseRefused, DatabaseUnavailable, NotMeasured, described
from surelane_service.figures import Figures, Holder, KindFigures, bounded
from surelane_service.lifecycle import sleep_unless
from surelane_service.logs import get_logger
from surelane_service.telemetry.setup import SCHEMA_URL, Observe

EVERY = 15.0
STALE_AFTER = 120.0
"""Age in seconds at which figures are no longer published."""
NAMED_AFTER = 60.0
"""Age in seconds at which a holder of vacuum is published by name.

A name for each short transaction would make time series without bound.
"""
PATIENCE = 1.0
WARNED_AFTER = 300.0
WARNED_EVERY = 600.0

Observed = Callable[[Figures], Iterable[Observation]]
"""Returns what a gauge shows of the figures."""

log = get_logger("surelane_service.watch")


class Watch:
    """Read the figures every 15 seconds."""

    def __init__(self, source: Callable[[], Awaitable[Figures]]) -> None:
        """``source`` returns them: the call of the queue's client, or of the poll, which brings them too."""
        self._source = source
        self._figures: Figures | None = None
        self._read_at = 0.0
        self._tried = asyncio.Event()
        self._complained = False
        self._warned: tuple[Holder, float] | None = None

    @property
    def figures(self) -> Figures | None:
        """The figures; ``None`` when they could not be read for two minutes."""
        return self._figures if time.monotonic() - self._read_at < STALE_AFTER else None

    async def clock_offset(self) -> timedelta | None:
        """Return this process's clock less the database's, as last compared; wait a second for the first comparison."""
        await sleep_unless(self._tried, PATIENCE)
        return self._figures.clock_offset if self._figures else None

    async def run(self) -> None:
        """Read until cancelled, with jitter so that replicas do not read at the same moment."""
        while True:
            await self.read()
            self._tried.set()
            await asyncio.sleep(EVERY * random.uniform(0.8, 1.0))  # noqa: S311 - not a secret

    async def read(self) -> None:
        try:
            self._figures = await self._source()
        except (DatabaseUnavailable, NotMeasured):
            return  # the claimer and the writer log outages
        except DatabaseRefused as error:  # an older schema has no figures
            if not self._complained:
                log.warning("the queue's figures cannot be read", **described(error))
            self._complained = True
            return
        self._complained = False
        self._read_at = time.monotonic()
        if self._figures.fresh and self._figures.holder is not None:
            self._warn(self._figures.holder)

    def _warn(self, holder: Holder) -> None:
        """Warn once per holder, and again every ten minutes."""
        if holder.age < WARNED_AFTER:
            return
        now = time.monotonic()
        if self._warned is not None:
            last, at = self._warned
            if (last.pid, last.since) == (holder.pid, holder.since) and now - at < WARNED_EVERY:
                return
        self._warned = (holder, now)
        log.warning(
            "vacuum is held back",
            holder=holder.holder,
            pid=holder.pid,
            application=holder.application,
            state=holder.state,
            since=datetime.fromtimestamp(holder.since, UTC).isoformat(timespec="seconds"),
        )

    def publish(self) -> None:
        """Register the figures as metrics of this process."""
        meter = metrics.get_meter("surelane", schema_url=SCHEMA_URL)
        for name, unit, description, observe in (
            ("queue.depth", "{event}", "Events in the queue.", _depths),
            ("queue.oldest_pending.age", "s", "For how long the oldest waits.", _each("oldest_pending_age")),
            ("queue.paused", "", "Whether a kind is paused.", _each("paused")),
            ("queue.group_waiting", "{event}", "Behind their group's head.", _one("group_waiting")),
            ("queue.workers", "{worker}", "Workers that are alive.", _one("workers")),
            ("queue.measurement.age", "s", "Since all these were measured.", self._age),
            ("vacuum.dead_rows", "{row}", "Rows waiting for vacuum.", _one("dead_rows")),
            ("vacuum.held", "s", "Age of what holds back vacuum the longest.", _held),
            ("vacuum.holder.since", "s", "Since when, by name.", _holder),
            ("clock.offset", "s", "Our clock less the database's.", _clock_offset),
        ):
            meter.create_observable_gauge(f"surelane.{name}", [self._now(observe)], unit, description)

    def _now(self, observe: Observed) -> Observe:
        """Return a callback that observes the figures, while there are any."""
        return lambda _: [] if (figures := self.figures) is None else observe(figures)

    def _age(self, figures: Figures) -> Iterable[Observation]:
        yield Observation(figures.age + time.monotonic() - self._read_at)


def _one(field: str) -> Observed:
    return lambda figures: [Observation(getattr(figures, field))]


def _each(field: str) -> Observed:
    # The sign makes a number of a flag: OTLP has no booleans for metrics.
    return lambda figures: [Observation(+getattr(kind, field), name) for kind, name in _kinds(figures)]


def _kinds(figures: Figures) -> Iterable[tuple[KindFigures, dict[str, str]]]:
    return [(kind, {"messaging.destination.name": kind.kind}) for kind in bounded(figures.kinds)]


def _depths(figures: Figures) -> Iterable[Observation]:
    for kind, name in _kinds(figures):
        for state in ("pending", "scheduled", "running"):
            yield Observation(getattr(kind, state), {**name, "state": state})


def _held(figures: Figures) -> Iterable[Observation]:
    yield Observation(figures.holder.age if figures.holder else 0.0)


def _clock_offset(figures: Figures) -> Iterable[Observation]:
    yield Observation(figures.clock_offset.total_seconds())


def _holder(figures: Figures) -> Iterable[Observation]:
    holder = figures.holder
    if holder is not None and holder.age >= NAMED_AFTER:
        name = {"holder": holder.holder, "application": holder.application, "state": holder.state}
        yield Observation(holder.since, {**name, "pid": str(holder.pid or "")})
