"""The parts of a worker: how they are put together, which of them run, and how they drain."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from surelane.calls import Connection, Pool
from surelane.encryption.data_keys import DataKeys
from surelane.encryption.sealing import Sealing
from surelane.jobs import Job
from surelane.queue import Queue
from surelane_service.engine import Engine
from surelane_service.logs import get_logger
from surelane_service.pool import Listener
from surelane_service.sealed_engine import OpeningEngine, SealedEngine
from surelane_service.watch import Watch
from surelane_worker.claiming.claimer import Claimer, Cursors, SecondClaims
from surelane_worker.claiming.poller import Poller
from surelane_worker.claiming.position import CrowdSplitter, Position, Side, Wakeup
from surelane_worker.duties import Duty, Retention, Scheduler, Sweeper, Uninstalls
from surelane_worker.handling.answers import Answers
from surelane_worker.handling.attempt import Services
from surelane_worker.handling.handler import Handler
from surelane_worker.handling.outcomes import Backoff
from surelane_worker.handling.registry import Handlers, registered_in
from surelane_worker.handling.room import FileRoom
from surelane_worker.handling.steps import RETRIES
from surelane_worker.leasing import Capacity, Leases, Work
from surelane_worker.observing.readiness import Outage
from surelane_worker.observing.tracing import Observer, unsampled
from surelane_worker.running.cancels import Cancels
from surelane_worker.running.runner import Runner
from surelane_worker.running.slots import Slots
from surelane_worker.running.watchdog import Watchdog
from surelane_worker.sessions import Announcer, Introduction, Session, SessionWatcher
from surelane_worker.settling import Settler
from surelane_worker.slack.client import SlackClients
from surelane_worker.slack.tokens import BotTokens, Refresher
from surelane_worker.worker_settings import WorkerSettings

SERVICE = "surelane-worker"
STATEMENT_TIMEOUT = timedelta(seconds=30)
CLAIM_TIMEOUT = timedelta(seconds=5)
"""Bounds claims, polls, connecting for them, and first settles: a connection that does not answer in time is cut."""

CONNECTIONS = 12
"""A worker's: those of its pools, and two that claim."""

FLUSH = 10.0
"""Seconds that a drain waits for the database to take the last outcomes."""

_log = get_logger("surelane_worker")


@dataclass(frozen=True, slots=True)
class Pools:
    """Ten connections, divided so that a hanging statement delays only statements of its own kind.

    If handlers wait for locks on all of theirs, heartbeats and settles still have connections.
    """

    leases: Pool
    settles: Pool
    """For settles, notes, answers and Slack's limits: they give up soon where a row is locked."""
    looks: Pool
    """For polls, schedules and probes."""
    sweeps: Pool
    """For sweeps and rescues, and to share kinds."""
    handlers: Pool


@dataclass(eq=False)
class Worker:
    """A worker, put together. Nothing runs yet."""

    settings: WorkerSettings
    registered: Handlers
    pools: Pools
    slack: SlackClients
    observer: Observer
    step_retries: Backoff = RETRIES
    engine: Callable[[Pool], Engine] | None = None
    """Makes the calls with which attempts store their steps, notes and outcomes."""
    refresher: Refresher | None = None
    """Finds the tokens of installs; ``None``: there is one token for all events."""
    sealing: Sealing | None = None
    """``None``: there are no keys, and nothing is decrypted."""

    def __post_init__(self) -> None:
        settings, pools, metrics = self.settings, self.pools, self.observer.metrics
        listens, self.kinds = settings.notifications, sorted(registered_in(self.registered).by_kind())
        self._sealing = self.sealing or Sealing(DataKeys(pools.looks, None), on=False)
        sealed = partial(SealedEngine if self._sealing.on else OpeningEngine, sealing=self._sealing)
        self._looks, self._sweeps = sealed(pools.looks), Engine(pools.sweeps)
        self._renewals, self._settles = Engine(pools.leases), (self.engine or sealed)(pools.settles)
        self._handlers = registered_in(self.registered).by_kind()
        self._introduction = _introduction(settings, self._handlers)
        # Claims of both sides move the same cursors, and ask for the same looks ahead.
        self._cursors, self._curious = Cursors(), asyncio.Event()
        wakeup = Wakeup(self._curious)
        capacity = Capacity(wakeup.wake)
        self.leases = Leases(self._renewals, settings.lease, metrics, capacity)
        self._settler = Settler(self._settles, self.leases, self.observer)
        self._sides = self._both_sides(wakeup, capacity)
        hooks = {"on_lost": self._lost, "on_open": self._begin_anew, "introduce": self._introduce}
        self._listener = self._connecting(**hooks, notifications=listens)
        lease, sides = settings.lease.total_seconds(), self._sides
        self.position = Position(sides, lease, listens, self._listener, self.kinds)
        known = self.leases.known
        self._session = Session(self._introduction, self._listener, self._renewals, known, locks=listens)
        # Behind a pooler no connection can join a session.
        self._second = SecondClaims(self._connecting(introduce=self._session.join)) if listens else None
        self.announcer = Announcer(self._introduction, self._listener, self._renewals, self._session.opened)
        self._splitter = CrowdSplitter(self._sweeps, settings.lease)
        outage = Outage(get_logger("surelane_worker.claiming.claimer"), "claims")
        shared = self.position, self._splitter, self.observer, outage, self._sealing
        beside = [self._second, None]  # for the ordinary events alone
        self.claimers = [
            Claimer(settings, self._listener, side, second, self._cursors, *shared)
            for side, second in zip(sides, beside, strict=False)
        ]
        """One per side."""
        self.scheduler = Scheduler(sealed(pools.looks), registered_in(self.registered).schedules(), metrics)
        self._poller = self._polling()
        self.watch = Watch(self._poller.figures)
        self._cancels = Cancels(self._settles, self._listener, self.leases, self._settler, listens)

    def duties(self) -> list[Duty]:
        """Return the duties that run beside the claimers, until the worker has drained."""
        return [
            self._settler.run,
            self.leases.keep,
            self.watch.run,  # before the first poll, which fetches its figures
            self.position.run,
            self.scheduler.run,
            self.announcer.run,
            self._poller.run,
            self._splitter.run,
            self._cancels.run,
            Watchdog(self._running, self.observer.metrics).run,
            *self._upkeep(),
        ]

    def _running(self) -> list[Work]:
        return [work for side in self._sides for work in side.slots.running()]

    def cut(self) -> None:
        """Cut the connections that claim at once, as the end of the process does."""
        self._listener.terminate()
        if self._second is not None:
            self._second.connection.terminate()

    async def hang_up(self) -> None:
        """End the connections that claim, and the session with them."""
        if self._second is not None:
            await self._second.connection.close()
        await self._listener.close()

    async def claim(self, stop: asyncio.Event) -> None:
        """Claim until ``stop`` is set."""
        async with asyncio.TaskGroup() as group:
            for claimer in self.claimers:
                group.create_task(claimer.run())
            await stop.wait()
            for claimer in self.claimers:
                claimer.stop()

    async def drain(self, within: float) -> None:
        """Release waiting events, let running handlers end, and wait until all outcomes are settled."""
        _log.info("draining", held=len(self.leases.held))
        await asyncio.gather(*(side.slots.drain(within) for side in self._sides))
        try:
            async with asyncio.timeout(FLUSH):
                await self._settler.flushed()
        except TimeoutError:
            told = "stopped with unsettled events; another worker ends their claims"
            _log.warning(told, count=len(self.leases.held))

    def _upkeep(self) -> list[Duty]:
        """Return the duties of no other part. Behind a pooler no worker has a session to keep and to watch."""
        settings, position, sweeps, name = self.settings, self.position, self._sweeps, self.settings.name
        claiming_for, metrics = self.claimers[0].claiming_for, self.observer.metrics
        sweeper = Sweeper(sweeps, position.stands_by, settings, self.kinds, metrics, claiming_for)
        duties: list[Duty] = [sweeper.run, self._session.release_late]
        if (kept := settings.history_retention) is not None:
            duties.append(Retention(sweeps, position.leads, kept).run)
        if (grace := settings.erase_uninstalled_after) is not None:
            duties.append(Uninstalls(sweeps, position.leads, grace, name).run)
        if self.refresher is not None:
            duties.append(self.refresher.run)
        if settings.notifications:
            wake, within = self._sides[0].wakeup.wake, settings.session_grace
            watcher = SessionWatcher(
                self._looks, name, within, wake, watches=position.stands_by, news=position.news
            )
            duties += [self._session.keep, watcher.run]
        return duties

    def _both_sides(self, wakeup: Wakeup, capacity: Capacity) -> list[Side]:
        """Return the sides. The first one gets the parts that the leases wake as events are settled."""
        answers = Answers(self._settles, self.settings.lease)
        runner = Runner(self._services(answers), self._handlers, self._settler, self.observer)
        sides: list[Side] = []
        for interactive in (False, True):
            handlers = {
                kind: each for kind, each in self._handlers.items() if each.interactive is interactive
            }
            if not handlers and (self._handlers or sides):
                continue
            if sides:
                wakeup = Wakeup(self._curious)
                capacity = Capacity(wakeup.wake)
            with nullcontext() if self.observer.tracing is None else unsampled():  # for all its handlers
                slots = Slots(self.settings, handlers, runner, self.leases, capacity, answers)
            sides.append(Side(wakeup, slots))
        return sides

    def _services(self, answers: Answers) -> Services:
        limit_key = partial(_limit_key, self._handlers)
        return Services(
            Queue(self.pools.handlers, self.observer.metrics.sent, limit_key, self._sealing),
            self._settles,
            self.leases.hold,
            self.settings,
            self.slack,
            answers,
            get_logger("surelane_worker.handling.handler"),
            asyncio.get_running_loop(),
            self.step_retries,
            None if self.refresher is None else BotTokens(self.refresher, self.slack.with_token),
            self.refresher,
            self._sealing,
            self.observer.metrics,
            FileRoom(self.settings.file_memory),
        )

    def _connecting(self, **given: Any) -> Listener:  # noqa: ANN401 - of Listener
        """Return a connection that claims."""
        url = self.settings.database_url.get_secret_value()
        return Listener(url, service=SERVICE, within=CLAIM_TIMEOUT, **given)

    async def _introduce(self, connection: Connection) -> None:
        """Open the session on a new connection once the last one claims nothing. Declare what bounds claims."""
        if self._second is not None:
            await self._second.leave()
        await self._session.open(connection)
        await self._introduction.bound(Engine(connection))

    def _lost(self) -> None:
        """Open another connection, and claim: notifications were missed."""
        self._session.lost()
        self.position.lost()
        self.position.wake()

    def _begin_anew(self) -> None:
        """Forget the cursors: on another server they may skip events. Renew all leases."""
        self._cursors.forget()
        self.position.lost()
        self._sides[0].wakeup.look_ahead()
        self.leases.renew_soon()

    def _polling(self) -> Poller:
        return Poller(
            self._looks,
            self.kinds,
            self._cursors,
            self._sides,
            self.position,
            self.announcer,
            interval=self.settings.poll_interval,
            max_attempts=self.settings.max_attempts,
            on_cron=self.scheduler.due_in,
            on_drained=self._rest,
            on_slow=self._listener.prove,
        )

    def _rest(self, drained: bool) -> None:
        """Claim nothing while an operator drains this worker."""
        for side in self._sides:
            side.slots.rest(drained)


def _introduction(settings: WorkerSettings, handlers: Mapping[str, Handler]) -> Introduction:
    waited = {kind: handler for kind, handler in handlers.items() if handler.waits}
    return Introduction(
        settings.name,
        sorted(handlers),
        [kind for kind, handler in waited.items() if handler.ordered] if waited else None,
        (settings.concurrency, settings.interactive_concurrency),
        settings.max_attempts,
        {kind: most for kind, handler in handlers.items() if (most := handler.max_attempts) is not None},
        {
            kind: handler.limit.declared(grouped=handler.grouped)
            for kind, handler in handlers.items()
            if handler.limit is not None
        },
    )


def _limit_key(handlers: Mapping[str, Handler], job: Job) -> str | None:
    """Return the key with which the limit of a handler counts a job that another handler enqueues."""
    handler = handlers.get(job.kind)
    return job.limit_key if handler is None or handler.limit is None else handler.limit.key_of(job)
