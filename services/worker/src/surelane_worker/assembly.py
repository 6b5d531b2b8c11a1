"""The parts of a worker: how they are put together, which of them run, and how they drain."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

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
from surelane_worker.claiming.position import CrowdSplitter, Position, PositionKeeper, Side, Wakeup
from surelane_worker.duties import Announcer, Duty, Scheduler, Sweeper, declare_limits
from surelane_worker.handling.answers import Answers
from surelane_worker.handling.attempt import Services
from surelane_worker.handling.handler import Handler
from surelane_worker.handling.outcomes import Backoff
from surelane_worker.handling.registry import Handlers, registered_in
from surelane_worker.handling.steps import RETRIES
from surelane_worker.leasing import Capacity, Leases
from surelane_worker.observing.readiness import Outage
from surelane_worker.observing.tracing import Observer, unsampled
from surelane_worker.retention import Retention, Uninstalls
from surelane_worker.running.cancels import Cancels
from surelane_worker.running.runner import Runner
from surelane_worker.running.slots import Slots
from surelane_worker.sessions import Heartbeats, Session, SessionKeeper, SessionWatcher
from surelane_worker.settling import Settler
from surelane_worker.slack.client import SlackClients
from surelane_worker.slack.tokens import Refresher, Tokens
from surelane_worker.worker_settings import WorkerSettings

SERVICE = "surelane-worker"
STATEMENT_TIMEOUT = timedelta(seconds=30)
CLAIM_TIMEOUT = timedelta(seconds=5)
"""Bounds claims, polls, connecting for them, and first settles: a connection that does not answer in time is cut."""

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


@dataclass(frozen=True)
class Worker:
    """The parts of a worker that run."""

    kinds: list[str]
    sides: list[Side]
    claimers: list[Claimer]
    """One per side."""
    settler: Settler
    leases: Leases
    listener: Listener
    second: SecondClaims | None
    """``None`` behind a pooler, where no connection can join a session."""
    positions: PositionKeeper
    scheduler: Scheduler
    watch: Watch
    announcer: Announcer
    others: list[Duty]
    """Duties that only run."""

    def duties(self) -> list[Duty]:
        """Return the duties that run beside the claimers, until the worker has drained."""
        return [
            self.settler.run,
            self.leases.keep,
            self.watch.run,  # before the first poll, which fetches its figures
            self.positions.run,
            self.scheduler.run,
            self.announcer.run,
            *self.others,
        ]

    def cut(self) -> None:
        """Cut the connections that claim at once, as the end of the process does."""
        self.listener.terminate()
        if self.second is not None:
            self.second.connection.terminate()

    async def hang_up(self) -> None:
        """End the connections that claim, and the session with them."""
        if self.second is not None:
            await self.second.connection.close()
        await self.listener.close()

    def is_claiming(self) -> bool:
        """Return whether the latest claim for the first side succeeded."""
        return self.claimers[0].is_claiming()

    async def claim(self, stop: asyncio.Event) -> None:
        """Claim until ``stop`` is set."""
        async with asyncio.TaskGroup() as group:
            for claimer in self.claimers:
                group.create_task(claimer.run(stop))

    async def drain(self, within: float) -> None:
        """Release waiting events, let running handlers end, and wait until all outcomes are settled."""
        _log.info("draining", held=len(self.leases.held))
        await asyncio.gather(*(side.slots.drain(within) for side in self.sides))
        try:
            async with asyncio.timeout(FLUSH):
                await self.settler.flushed()
        except TimeoutError:
            _log.warning(
                "stopped with unsettled events; another worker ends their claims",
                count=len(self.leases.held),
            )


class Assembly:
    """Puts a worker together: the parts that several others need, and what builds those."""

    def __init__(
        self,
        settings: WorkerSettings,
        registered: Handlers,
        pools: Pools,
        slack: SlackClients,
        observer: Observer,
        *,
        step_retries: Backoff = RETRIES,
        engine: Callable[[Pool], Engine] | None = None,
        refresher: Refresher | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        """Make the parts that several others need. Nothing runs yet.

        Args:
            settings, registered, pools, slack, observer: what to put the worker together from.
            step_retries: the pauses between the tries of one step.
            engine: makes the calls with which attempts store their steps, notes and outcomes.
            refresher: finds the tokens of installs; ``None``: there is one token for all events.
            sealing: encrypts and decrypts; by default it decrypts nothing, as no keys are set.
        """
        sealing = Sealing(DataKeys(pools.looks, None), on=False) if sealing is None else sealing
        kind = SealedEngine if sealing.on else OpeningEngine
        engine = partial(kind, sealing=sealing) if engine is None else engine
        self._settings = settings
        self._sealing = sealing
        self._refresher = refresher
        self._step_retries = step_retries
        self._registered = registered_in(registered)
        self._slack = slack
        self._observer = observer
        self._metrics = observer.metrics
        self._pool = pools.handlers
        self._looks, self._sweeps = Engine(pools.looks), Engine(pools.sweeps)
        self._renewals, self._settles = Engine(pools.leases), engine(pools.settles)
        self._handlers = self._registered.by_kind()
        self._kinds, self._ordered = sorted(self._handlers), _ordered(self._handlers)
        self._attempts = {
            kind: handler.max_attempts
            for kind, handler in self._handlers.items()
            if handler.max_attempts is not None
        }
        self._limits = {
            kind: handler.limit.declared(grouped=handler.grouped)
            for kind, handler in self._handlers.items()
            if handler.limit is not None
        }
        # Claims of both sides move the same cursors, and ask for the same looks ahead.
        self._cursors, self._curious = Cursors(), asyncio.Event()
        wakeup = Wakeup(self._curious)
        capacity = Capacity(wakeup.wake)
        self._leases = Leases(self._renewals, settings.lease, self._metrics, capacity)
        self._settler = Settler(self._settles, self._leases, observer)
        self._sides = self._both_sides(wakeup, capacity)
        self._position = Position(
            self._sides, settings.lease.total_seconds(), notifications=settings.notifications
        )
        slots = settings.concurrency, settings.interactive_concurrency
        known, locks = self._leases.known, settings.notifications
        self._session = Session(settings.name, self._kinds, self._ordered, slots, known, locks=locks)
        self._second = self._claiming_twice() if settings.notifications else None
        self._listener = self._listening()
        self._heartbeats = Heartbeats(settings.name)

    def worker(self) -> Worker:
        """Return the parts that run."""
        splitter = CrowdSplitter(self._sweeps, self._settings.lease)
        claimers = self._claimers(splitter)
        scheduler = Scheduler(self._looks, self._registered.schedules(), self._metrics)
        poller = self._poller(scheduler)
        watch = Watch(poller)
        return Worker(
            kinds=self._kinds,
            sides=self._sides,
            claimers=claimers,
            settler=self._settler,
            leases=self._leases,
            listener=self._listener,
            second=self._second,
            positions=PositionKeeper(self._position, self._listener, self._kinds),
            scheduler=scheduler,
            watch=watch,
            announcer=self._announcer(watch),
            others=[poller.run, splitter.run, self._cancels().run, *self._upkeep(claimers[0])],
        )

    def _cancels(self) -> Cancels:
        notifications = self._settings.notifications
        return Cancels(
            self._settles, self._listener, self._leases, self._settler, notifications=notifications
        )

    def _upkeep(self, claimer: Claimer) -> list[Duty]:
        """Return what sweeps, drops and releases. Behind a pooler no worker has a session to keep and to watch."""
        settings, leads = self._settings, self._position.leads
        stands_by = self._position.stands_by
        return [
            Sweeper(self._sweeps, settings, self._kinds, self._metrics, claimer.claiming_for, stands_by).run,
            Retention(self._sweeps, settings.history_retention, leads).run,
            Uninstalls(self._sweeps, settings.erase_uninstalled_after, settings.name, leads).run,
            partial(self._session.release_late, self._renewals),
            *(self._session_duties() if settings.notifications else []),
        ]

    def _both_sides(self, wakeup: Wakeup, capacity: Capacity) -> list[Side]:
        """Return the sides. The first one gets the parts that the leases wake as events are settled."""
        answers = Answers(self._settles, self._settings.lease)
        runner = Runner(self._services(answers), self._handlers, self._settler, self._observer)
        sides: list[Side] = []
        for interactive in (False, True):
            handlers = {
                kind: handler
                for kind, handler in self._handlers.items()
                if handler.interactive is interactive
            }
            if not handlers and (self._handlers or sides):
                continue
            if sides:
                wakeup = Wakeup(self._curious)
                capacity = Capacity(wakeup.wake)
            with nullcontext() if self._observer.tracing is None else unsampled():  # for all its handlers
                slots = Slots(self._settings, handlers, runner, self._leases, capacity, answers)
            sides.append(Side(wakeup, slots))
        return sides

    def _services(self, answers: Answers) -> Services:
        return Services(
            Queue(self._pool, self._metrics.sent, partial(_limit_key, self._handlers), self._sealing),
            self._settles,
            self._leases.hold,
            self._settings,
            self._slack,
            answers,
            get_logger("surelane_worker.handling.handler"),
            asyncio.get_running_loop(),
            self._step_retries,
            self._tokens(),
            self._refresher,
            self._sealing,
        )

    def _tokens(self) -> Tokens | None:
        if self._refresher is None:
            return None
        stored = self._refresher.installations
        return Tokens(self._refresher.find, self._slack.with_token, stored.await_one, stored.other_reporter)

    def _listening(self) -> Listener:
        return Listener(
            self._settings.database_url.get_secret_value(),
            service=SERVICE,
            on_notice=self._position.heard,
            on_lost=self._lost,
            on_open=self._begin_anew,
            introduce=self._introduce,
            notifications=self._settings.notifications,
            within=CLAIM_TIMEOUT,
        )

    def _claiming_twice(self) -> SecondClaims:
        return SecondClaims(
            Listener(
                self._settings.database_url.get_secret_value(),
                service=SERVICE,
                introduce=self._session.join,
                within=CLAIM_TIMEOUT,
            )
        )

    async def _introduce(self, connection: Connection) -> None:
        """Open the session on a new connection once the last one claims nothing. Declare what bounds claims."""
        if self._second is not None:
            await self._second.leave()
        await self._session.open(connection)
        engine, name = Engine(connection), self._settings.name
        await declare_limits(engine, name, self._kinds, self._limits)
        if self._attempts:
            await engine.declare_attempts(name, self._kinds, self._settings.max_attempts, self._attempts)

    def _lost(self) -> None:
        """Open another connection when it broke, and claim: notifications were missed."""
        self._session.lost()
        self._position.lost()
        self._position.wake()

    def _begin_anew(self) -> None:
        """Forget the cursors when a connection is opened: on another server they may skip events. Renew all leases."""
        self._cursors.forget()
        self._position.lost()
        self._sides[0].wakeup.look_ahead()
        self._leases.renew_soon()

    def _claimers(self, splitter: CrowdSplitter) -> list[Claimer]:
        outage = Outage(get_logger("surelane_worker.claiming.claimer"), "claims")
        return [
            Claimer(
                self._settings,
                self._listener,
                side,
                self._second if side is self._sides[0] else None,
                cursors=self._cursors,
                position=self._position,
                splitter=splitter,
                observer=self._observer,
                outage=outage,
                sealing=self._sealing,
            )
            for side in self._sides
        ]

    def _poller(self, scheduler: Scheduler) -> Poller:
        return Poller(
            self._looks,
            self._kinds,
            self._cursors,
            self._sides,
            self._position,
            self._heartbeats,
            interval=self._settings.poll_interval,
            max_attempts=self._settings.max_attempts,
            on_cron=scheduler.due_in,
            on_drained=self._rest,
            on_slow=self._listener.prove,
        )

    def _rest(self, drained: bool) -> None:
        """Claim nothing while an operator drains this worker."""
        for side in self._sides:
            side.slots.rest(drained)

    def _session_duties(self) -> list[Duty]:
        watcher = SessionWatcher(
            self._looks,
            self._settings.name,
            self._settings.session_grace,
            self._sides[0].wakeup.wake,
            watches=self._position.stands_by,
            news=self._position.news,
        )
        return [SessionKeeper(self._session, self._listener).run, watcher.run]

    def _announcer(self, watch: Watch) -> Announcer:
        return Announcer(
            self._listener,
            self._renewals,
            self._settings,
            self._kinds,
            self._ordered,
            watch.clock_offset,
            self._heartbeats,
            self._limits,
            self._attempts,
        )


def _ordered(handlers: Mapping[str, Handler]) -> Sequence[str] | None:
    """Return the commands and interactions that keep their thread's order; ``None``: it handles none at all."""
    if not any(handler.waits for handler in handlers.values()):
        return None
    return [kind for kind, handler in handlers.items() if handler.waits and handler.ordered]


def _limit_key(handlers: Mapping[str, Handler], job: Job) -> str | None:
    """Return the key with which the limit of a handler counts a job that another handler enqueues."""
    handler = handlers.get(job.kind)
    return job.limit_key if handler is None or handler.limit is None else handler.limit.key_of(job)
