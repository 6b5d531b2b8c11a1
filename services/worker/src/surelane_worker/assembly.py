"""The parts of a worker: how they are put together, which of them run, and how they drain."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from surelane.calls import Connection, Pool
from surelane.codec import PLAIN, Codec
from surelane.jobs import Job
from surelane.queue import Queue
from surelane_service.engine import Engine
from surelane_service.logs import get_logger
from surelane_service.pool import Listener
from surelane_service.watch import Watch
from surelane_worker.claiming.claimer import Claimer, Cursors, PassedOver, Side, Wakeup
from surelane_worker.claiming.position import Poller, Position
from surelane_worker.duties import CrowdSplitter, Duty, Retention, Scheduler, Sweeper, Uninstalls, Vacuum
from surelane_worker.handling.answers import AnswerSender
from surelane_worker.handling.attempt import Services
from surelane_worker.handling.handler import Handler
from surelane_worker.handling.outcomes import Backoff
from surelane_worker.handling.registry import Handlers, registered_in
from surelane_worker.handling.steps import RETRIES
from surelane_worker.leasing import Capacity, Leases, Work
from surelane_worker.observing.readiness import Outage
from surelane_worker.observing.tracing import Observer, unsampled
from surelane_worker.running.runner import Runner
from surelane_worker.running.slots import Slots
from surelane_worker.running.watching import Cancels, Watchdog
from surelane_worker.sessions import Announcer, Introduction, Session, SessionWatcher
from surelane_worker.settling import Settler
from surelane_worker.slack.client import SlackClients
from surelane_worker.slack.tokens import BotTokens, Refresher
from surelane_worker.worker_settings import WorkerSettings

SERVICE = "surelane-worker"
STATEMENT_TIMEOUT = timedelta(seconds=30)
CLAIM_TIMEOUT = timedelta(seconds=5)
"""Bounds claims, polls, connecting for them, and first settles: a connection that does not answer in time is cut."""

CONNECTIONS = 11
"""A worker's: those of its pools, and the one that claims."""


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
class Assembly:
    """A worker, put together. Nothing runs yet."""

    settings: WorkerSettings
    registered: Handlers
    pools: Pools
    slack: SlackClients
    observer: Observer
    step_retries: Backoff = RETRIES
    engine: Callable[[Pool, Codec], Engine] = Engine
    """Makes the calls with which attempts store their steps, notes and outcomes."""
    refresher: Refresher | None = None
    """Finds the tokens of installs; ``None``: there is one token for all events."""
    codec: Codec = PLAIN

    def __post_init__(self) -> None:
        registered, notifications = registered_in(self.registered), self.settings.notifications
        self._handlers = registered.by_kind()
        self.kinds = sorted(self._handlers)
        self._call_the_database()
        self._hold_claims()
        self._sides = self._both_sides()
        self._keep_a_session(notifications=notifications)
        self._claim_events()
        self.scheduler = Scheduler(
            engine=self._looks, declared=registered.schedules(), metrics=self.observer.metrics
        )
        self._poller = self._polling()
        self.watch = Watch(self._poller.figures)
        self._cancels = Cancels(
            engine=self._settles,
            listener=self._listener,
            leases=self.leases,
            settler=self._settler,
            notifications=notifications,
        )

    def _call_the_database(self) -> None:
        pools = self.pools
        self._looks, self._sweeps = Engine(pools.looks, self.codec), Engine(pools.sweeps)
        self._renewals, self._settles = Engine(pools.leases), self.engine(pools.settles, self.codec)

    def _hold_claims(self) -> None:
        """Make what holds claims until they are settled. As they are, the first side may claim more."""
        self._curious = asyncio.Event()  # both sides ask for the same looks ahead
        self._first_wakeup = Wakeup(self._curious)
        self._first_capacity = Capacity(self._first_wakeup.wake)
        self.leases = Leases(
            engine=self._renewals,
            lease=self.settings.lease,
            metrics=self.observer.metrics,
            capacity=self._first_capacity,
        )
        self._settler = Settler(
            engine=self._settles, leases=self.leases, observer=self.observer, codec=self.codec
        )

    def _keep_a_session(self, *, notifications: bool) -> None:
        """Make what holds the connection that claims, with what it proves and what the worker says of itself."""
        self._introduction = _introduction(self.settings, self._handlers)
        self._listener = Listener(
            self.settings.database_url.get_secret_value(),
            service=SERVICE,
            within=CLAIM_TIMEOUT,
            on_lost=self._lost,
            on_open=self._begin_anew,
            introduce=self._introduce,
            notifications=notifications,
        )
        self._session = Session(
            worker=self._introduction,
            listener=self._listener,
            engine=self._renewals,
            known=self.leases.known,
            locks=notifications,
        )
        self.announcer = Announcer(
            worker=self._introduction,
            listener=self._listener,
            engine=self._renewals,
            opened=self._session.opened,
        )
        self.position = Position(
            sides=self._sides,
            lease=self.settings.lease.total_seconds(),
            notifications=notifications,
            listener=self._listener,
            kinds=self.kinds,
        )
        self._watcher = SessionWatcher(
            engine=self._looks,
            name=self.settings.name,
            grace=self.settings.session_grace,
            wake=self._sides[0].wakeup.wake,
            watches=self.position.stands_by,
            news=self.position.news,
        )

    def _claim_events(self) -> None:
        self._cursors, refusals = Cursors(), PassedOver()  # both sides share them
        self._splitter = CrowdSplitter(engine=self._sweeps, lease=self.settings.lease)
        outage = Outage(get_logger("surelane_worker.claiming.claimer"), "claims")
        self.claimers = [
            Claimer(
                settings=self.settings,
                listener=self._listener,
                side=side,
                cursors=self._cursors,
                refusals=refusals,
                unlimited=self._introduction.unlimited,
                on_claimed=self.position.claimed,
                on_crowd=self._splitter.claimed,
                observer=self.observer,
                outage=outage,
                codec=self.codec,
            )
            for side in self._sides
        ]
        """One per side."""

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
        """Cut the connection that claims at once, as the end of the process does."""
        self._listener.terminate()

    async def hang_up(self) -> None:
        """End the connection that claims, and the session with it."""
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
            async with asyncio.timeout(10.0):  # for the database to take the last outcomes
                await self._settler.flushed()
        except TimeoutError:
            told = "stopped with unsettled events; another worker ends their claims"
            _log.warning(told, count=len(self.leases.held))

    def _upkeep(self) -> list[Duty]:
        """Return the duties of no other part. Behind a pooler no worker has a session to keep and to watch."""
        settings, position, sweeps = self.settings, self.position, self._sweeps
        sweeper = Sweeper(
            engine=sweeps,
            leads=position.stands_by,
            settings=settings,
            kinds=self.kinds,
            metrics=self.observer.metrics,
            claiming_for=self.claimers[0].claiming_for,
        )
        duties: list[Duty] = [sweeper.run, Vacuum(sweeps, position.leads).run, self._session.release_late]
        if (kept := settings.history_retention) is not None:
            duties.append(Retention(engine=sweeps, leads=position.leads, older_than=kept).run)
        if (grace := settings.erase_uninstalled_after) is not None:
            uninstalls = Uninstalls(engine=sweeps, leads=position.leads, grace=grace, name=settings.name)
            duties.append(uninstalls.run)
        if self.refresher is not None:
            duties.append(self.refresher.run)
        if settings.notifications:
            duties += [self._session.keep, self._watcher.run]
        return duties

    def _both_sides(self) -> list[Side]:
        """Return the sides: first that of the ordinary events, unless all handlers are interactive."""
        answers = AnswerSender(self._settles, self.settings.lease)
        runner = Runner(self._services(answers), self._handlers, self._settler, self.observer)
        wakeup, capacity = self._first_wakeup, self._first_capacity
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
                slots = Slots(
                    settings=self.settings,
                    handlers=handlers,
                    runner=runner,
                    leases=self.leases,
                    capacity=capacity,
                    answers=answers,
                )
            sides.append(Side(wakeup, slots))
        return sides

    def _services(self, answers: AnswerSender) -> Services:
        """Return what handlers use."""
        limit_key = partial(_limit_key, self._handlers)
        return Services(
            queue=Queue(self.pools.handlers, self.observer.metrics.sent, limit_key, self.codec),
            engine=self._settles,
            check_claim=self.leases.hold,
            settings=self.settings,
            slack=self.slack,
            answers=answers,
            log=get_logger("surelane_worker.handling.handler"),
            loop=asyncio.get_running_loop(),
            step_retries=self.step_retries,
            tokens=None if self.refresher is None else BotTokens(self.refresher, self.slack.with_token),
            installs=self.refresher,
            codec=self.codec,
        )

    async def _introduce(self, connection: Connection) -> None:
        """Open the session on a new connection. Declare what bounds its claims."""
        await self._session.open(connection)
        await self._introduction.bound(Engine(connection))

    def _lost(self) -> None:
        """Open another connection, and claim: notifications were missed."""
        self._session.lost()
        self._watcher.disturbed()
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
            engine=self._looks,
            kinds=self.kinds,
            cursors=self._cursors,
            sides=self._sides,
            position=self.position,
            announcer=self.announcer,
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
        name=settings.name,
        kinds=sorted(handlers),
        ordered=[kind for kind, handler in waited.items() if handler.ordered] if waited else None,
        slots=(settings.concurrency, settings.interactive_concurrency),
        max_attempts=settings.max_attempts,
        attempts={
            kind: most for kind, handler in handlers.items() if (most := handler.max_attempts) is not None
        },
        limits={
            kind: handler.limit.declared(grouped=handler.grouped)
            for kind, handler in handlers.items()
            if handler.limit is not None
        },
    )


def _limit_key(handlers: Mapping[str, Handler], job: Job) -> str | None:
    """Return the key with which the limit of a handler counts a job that another handler enqueues."""
    handler = handlers.get(job.kind)
    return job.limit_key if handler is None or handler.limit is None else handler.limit.key_of(job)
