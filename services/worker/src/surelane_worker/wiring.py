"""Build the worker from its settings, and stop its parts in an order that loses no event."""

import asyncio
import gc
from collections.abc import Mapping
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, cast

from surelane import __version__
from surelane.calls import Pool
from surelane.errors import SettingsError
from surelane.jobs import Job
from surelane.queue import Queue
from surelane_service.engine import Engine
from surelane_service.listener import Listener
from surelane_service.logs import configure_logs, get_logger
from surelane_service.pool import LOCK_TIMEOUT, close_pool, create_pool
from surelane_service.probes import PRIVATE_CONNECTIONS, ConnectionLimit, private_app, serving
from surelane_service.settings import load_settings
from surelane_service.telemetry.setup import configure_telemetry
from surelane_service.watch import Watch
from surelane_worker.bolt import bolt_handlers, is_bolt_app, pointed_at
from surelane_worker.builtin import messages, questions
from surelane_worker.claiming.claimer import Claimer
from surelane_worker.claiming.cursors import Cursors
from surelane_worker.claiming.poller import Poller, Wakeup
from surelane_worker.claiming.position import Position, PositionKeeper, Side
from surelane_worker.claiming.sharer import Sharer
from surelane_worker.duties import Announcer, Duty, Rescuer, Scheduler, Sweeper, beside
from surelane_worker.handling.answers import Answers
from surelane_worker.handling.context import Services
from surelane_worker.handling.handler import Handler
from surelane_worker.handling.loading import load_handlers, warn_of_doubts
from surelane_worker.handling.registry import Handlers
from surelane_worker.leasing import Capacity, Leases
from surelane_worker.observing.heartbeats import Heartbeats
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.readiness import Outage, Readiness, until_schema_fits
from surelane_worker.observing.tracing import Observer, Tracing
from surelane_worker.retention import Retention
from surelane_worker.running.cancels import Cancels
from surelane_worker.running.runner import Runner
from surelane_worker.running.slots import Slots
from surelane_worker.sessions import Session, SessionKeeper, SessionWatcher
from surelane_worker.settings import BUILT_IN_HANDLERS, WorkerSettings
from surelane_worker.settling import Settler
from surelane_worker.slack.client import SlackClients, slack_clients
from surelane_worker.slack.limiter import Limiter
from surelane_worker.slack.tiers import rules_of

SERVICE = "surelane-worker"
STATEMENT_TIMEOUT = timedelta(seconds=30)

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


async def main(stop: asyncio.Event) -> None:
    """Run the worker until ``stop`` is set, then drain it."""
    settings = load_settings(WorkerSettings)
    configure_logs(SERVICE, settings.log_level)
    handlers = _handlers(settings)
    telemetry = configure_telemetry(SERVICE, __version__)
    metrics = Metrics()
    metrics.publish(sorted(_kinds(handlers)), pushed=telemetry.pushes_metrics)
    tracer = telemetry.tracer
    tracing = None if tracer is None else Tracing(tracer, linked=settings.process_span == "linked")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, telemetry.shutdown)
        pools = await _pools(settings, stack)
        limiter = None
        if settings.slack_limits != "off":
            rules = partial(rules_of, apps=settings.slack_limits)
            limiter = Limiter(Engine(pools.settles), metrics, rules)
            stack.push_async_callback(limiter.close)
        slack = await stack.enter_async_context(
            slack_clients(settings, traced=tracing is not None, limiter=limiter)
        )
        # Freeze imported objects: full collections then do not traverse them while events are handled.
        gc.collect()
        gc.freeze()
        await _serve(stop, settings, handlers, pools, slack, Observer(metrics, tracing))


async def _pools(settings: WorkerSettings, stack: AsyncExitStack) -> "Pools":
    async def pool(size: int, lock_timeout: float | None = None) -> Pool:
        opened = await create_pool(
            settings.database_url.get_secret_value(),
            service=SERVICE,
            max_size=size,
            statement_timeout=STATEMENT_TIMEOUT,
            prepared=settings.notifications,
            lock_timeout=lock_timeout,
        )
        stack.push_async_callback(close_pool, opened)
        return opened

    return Pools(
        leases=await pool(1, LOCK_TIMEOUT),
        settles=await pool(3, LOCK_TIMEOUT),
        looks=await pool(2),
        sweeps=await pool(1),
        handlers=await pool(3),
    )


def _handlers(settings: WorkerSettings) -> Handlers:
    """Load the handlers that the settings name.

    Raises:
        SettingsError: they cannot be used, or need a token that is not set.
    """

    def adapt(found: object) -> object:
        return bolt_handlers(cast("Any", found), settings.bolt_kinds) if is_bolt_app(found) else found

    with nullcontext() if settings.speaks_to_slack else pointed_at(settings.slack_api_url):
        loaded = load_handlers(settings.handlers, adapt)
    if settings.model is not None:
        messages.agent.check(settings)
    if settings.handlers == BUILT_IN_HANDLERS and settings.bot_token is None:
        raise SettingsError("SLACK_BOT_TOKEN is not set; set it: the built-in handlers answer in Slack")
    types = settings.event_types
    warn_of_doubts(_kinds(loaded), None if types is None else {name.strip() for name in types.split(",")})
    return loaded if settings.bot_token is None else with_questions(loaded)


def with_questions(loaded: Handlers) -> Handlers:
    """Add the handlers of the answers to ``ctx.ask``."""
    together = Handlers()
    together.include(loaded)
    together.include(questions.handlers)
    return together


def _kinds(registered: Handlers) -> dict[str, Handler]:
    return {kind: handler for handler in registered.all() for kind in handler.kinds}


async def _serve(
    stop: asyncio.Event,
    settings: WorkerSettings,
    handlers: Handlers,
    pools: Pools,
    slack: SlackClients,
    observer: Observer,
) -> None:
    worker = assemble(settings, handlers, pools, slack, observer)
    queue = Engine(pools.looks)
    worker.watch.publish()
    readiness = Readiness(queue, stop.is_set, worker.claimer.is_claiming)
    app = private_app(readiness.unready)
    limit = ConnectionLimit(PRIVATE_CONNECTIONS)
    async with serving(
        app,
        settings.private_port,
        setting="SURELANE_PRIVATE_PORT",
        host=settings.private_address,
        limit=limit,
    ) as port:
        await until_schema_fits(queue, stop)
        _log.info("working", worker=settings.name, kinds=worker.kinds, private_port=port)
        try:
            async with beside(*worker.duties()):
                await worker.claim(stop)
                await worker.positions.resign()
                await worker.drain(settings.drain_timeout.total_seconds())
        finally:
            await worker.announcer.retire()
            await worker.listener.close()
        _log.info("stopped")


@dataclass(frozen=True)
class Worker:
    """The parts of a worker that run."""

    claimer: Claimer
    slots: Slots
    quick_claimer: Claimer | None
    """Claims commands and interactions for their own slots; ``None`` if the worker handles none, or nothing else."""
    quick_slots: Slots | None
    settler: Settler
    cancels: Cancels
    leases: Leases
    listener: Listener
    positions: PositionKeeper
    poller: Poller
    sharer: Sharer
    sweeper: Sweeper
    retention: Retention
    scheduler: Scheduler
    rescuer: Rescuer
    session_duties: list[Duty]
    """None behind a pooler, where no worker has a session."""
    watch: Watch
    announcer: Announcer
    kinds: list[str]

    def duties(self) -> list[Duty]:
        """Return the duties that run beside the claimer, until the worker has drained."""
        return [
            self.settler.run,
            self.leases.keep,
            self.cancels.run,
            self.watch.run,  # before the first poll, which fetches its figures
            self.poller.run,
            self.positions.run,
            self.sharer.run,
            self.sweeper.run,
            self.retention.run,
            self.scheduler.run,
            self.rescuer.run,
            self.announcer.run,
            *self.session_duties,
        ]

    async def claim(self, stop: asyncio.Event) -> None:
        """Claim until ``stop`` is set."""
        async with asyncio.TaskGroup() as group:
            if self.quick_claimer is not None:
                group.create_task(self.quick_claimer.run(stop))
            await self.claimer.run(stop)

    async def drain(self, within: float) -> None:
        """Release waiting events, let running handlers end, and wait until all outcomes are settled."""
        _log.info("draining", held=len(self.leases.held))
        slots = (self.slots, self.quick_slots)
        await asyncio.gather(*(each.drain(within) for each in slots if each is not None))
        try:
            async with asyncio.timeout(FLUSH):
                await self.settler.flushed()
        except TimeoutError:
            _log.warning(
                "stopped with unsettled events; they are claimed again when their leases run out",
                count=len(self.leases.held),
            )


def assemble(
    settings: WorkerSettings, registered: Handlers, pools: Pools, slack: SlackClients, observer: Observer
) -> Worker:
    """Put the parts together. Nothing runs yet."""
    metrics, handlers = observer.metrics, _kinds(registered)
    cursors, curious = Cursors(), asyncio.Event()
    wakeup, quick_wakeup = Wakeup(curious), Wakeup(curious)
    capacity = Capacity(wakeup.wake)
    leases = Leases(Engine(pools.leases), settings.lease, metrics, capacity)
    settler = Settler(Engine(pools.settles), leases, observer)
    answers = Answers(Engine(pools.settles), settings.lease)
    services = Services(
        Queue(pools.handlers, metrics.sent, partial(_limit_key, handlers)),
        Engine(pools.settles),
        leases.hold,
        settings,
        slack,
        answers,
        get_logger("surelane_worker.handling.handler"),
        asyncio.get_running_loop(),
    )
    runner = Runner(services, handlers, settler, observer)
    quick = {kind: handler for kind, handler in handlers.items() if handler.interactive}
    others = {kind: handler for kind, handler in handlers.items() if not handler.interactive}
    if not others:
        others, quick = quick, {}  # it has interactive slots alone
    slots = Slots(settings, others, runner, leases, capacity, answers)
    quick_slots = (
        Slots(settings, quick, runner, leases, Capacity(quick_wakeup.wake), answers) if quick else None
    )
    kinds, ordered = sorted(handlers), _ordered(handlers)
    session = Session(settings.name, kinds, ordered, locks=settings.notifications)
    position = Position(
        partial(_notified, wakeup, slots),
        slots.full,
        settings.lease.total_seconds(),
        notifications=settings.notifications,
        interactive=Side(quick_wakeup.wake, quick_slots.full) if quick_slots is not None else None,
    )
    listener = Listener(
        settings.database_url.get_secret_value(),
        service=SERVICE,
        on_notice=position.heard,
        on_lost=partial(_lost, session, position),
        on_open=partial(_begin_anew, cursors, wakeup, position, leases),
        introduce=session.open,
        notifications=settings.notifications,
        within=STATEMENT_TIMEOUT,
    )
    cancels = Cancels(Engine(pools.settles), listener, leases, settler, notifications=settings.notifications)
    sharer = Sharer(Engine(pools.sweeps), settings.lease)
    claimer_for = partial(
        Claimer,
        settings,
        listener,
        cursors=cursors,
        position=position,
        sharer=sharer,
        observer=observer,
        outage=Outage(get_logger("surelane_worker.claiming.claimer"), "claims"),
    )
    claimer = claimer_for(wakeup, slots)
    quick_claimer = None if quick_slots is None else claimer_for(quick_wakeup, quick_slots)
    heartbeats = Heartbeats(settings.name)
    sweeps, looks = Engine(pools.sweeps), Engine(pools.looks)
    sweeper = Sweeper(sweeps, settings, kinds, metrics, claimer.claiming_for, position.leads)
    scheduler = Scheduler(looks, registered.schedules(), metrics)
    poller = Poller(
        looks,
        kinds,
        cursors,
        wakeup,
        position,
        heartbeats,
        interval=settings.poll_interval,
        max_attempts=settings.max_attempts,
        on_cron=scheduler.due_in,
        interactive=quick_wakeup if quick else None,
        interactive_kinds=quick.keys(),
    )
    watch = Watch(poller)
    limits = {
        kind: handler.limit.declared(grouped=handler.grouped)
        for kind, handler in handlers.items()
        if handler.limit is not None
    }
    announcer = Announcer(
        listener,
        Engine(pools.leases),
        settings,
        kinds,
        ordered,
        watch.clock_offset,
        heartbeats,
        limits,
    )
    return Worker(
        claimer=claimer,
        slots=slots,
        quick_claimer=quick_claimer,
        quick_slots=quick_slots,
        settler=settler,
        cancels=cancels,
        leases=leases,
        listener=listener,
        positions=PositionKeeper(position, listener, kinds),
        poller=poller,
        sharer=sharer,
        sweeper=sweeper,
        retention=Retention(sweeps, settings.history_retention, position.leads),
        scheduler=scheduler,
        rescuer=Rescuer(sweeps, position.stands_by),
        session_duties=[
            SessionKeeper(session, listener).run,
            SessionWatcher(
                looks,
                settings.name,
                settings.session_grace,
                wakeup.wake,
                watches=position.stands_by,
                news=position.news,
            ).run,
        ]
        if settings.notifications
        else [],
        watch=watch,
        announcer=announcer,
        kinds=kinds,
    )


def _ordered(handlers: Mapping[str, Handler]) -> list[str] | None:
    """Return the commands and interactions that keep their thread's order; ``None``: it handles none at all."""
    if not any(handler.waits for handler in handlers.values()):
        return None
    return [kind for kind, handler in handlers.items() if handler.waits and handler.ordered]


def _limit_key(handlers: Mapping[str, Handler], job: Job) -> str | None:
    """Return the key with which the limit of a handler counts a job that another handler enqueues."""
    handler = handlers.get(job.kind)
    return job.limit_key if handler is None or handler.limit is None else handler.limit.key_of(job)


def _begin_anew(cursors: Cursors, wakeup: Wakeup, position: Position, leases: Leases) -> None:
    """Forget the cursors when a connection is opened: on another server they may skip events. Renew all leases."""
    cursors.forget()
    position.lost()
    wakeup.look_ahead()
    leases.renew_soon()


def _notified(wakeup: Wakeup, slots: Slots) -> None:
    """Claim because of a notification. If no slot is free, the event may come before those that wait for one."""
    slots.let_overtake()
    wakeup.wake()


def _lost(session: Session, position: Position) -> None:
    """Open another connection when it broke, and claim: notifications were missed."""
    session.lost()
    position.lost()
    position.wake()
