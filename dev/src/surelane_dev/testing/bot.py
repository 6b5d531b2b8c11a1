"""Run a bot for one test: ingest, a worker and a simulated Slack in its process, with a clock that it can set."""

import asyncio
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from pydantic import SecretBytes

from surelane.calls import Connection, Pool
from surelane.queue import Queue
from surelane_dev.accounts import OWNER
from surelane_dev.simulator.client import SimulatorClient
from surelane_dev.simulator.manifest import DOCUMENTED, read_manifest
from surelane_dev.simulator.server import serving_simulator
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.simulator_settings import FAKE_MODEL, FAKE_MODEL_PATH, SimulatorSettings
from surelane_dev.simulator.workspace.model import JSON
from surelane_dev.testing.agents import agents_use
from surelane_dev.testing.bolt import handlers_of, in_place_of_slack
from surelane_dev.testing.crash import Crashes
from surelane_dev.testing.database import PostgresServer, connected
from surelane_dev.testing.slack import Slack
from surelane_dev.testing.story import Story, stories
from surelane_dev.testing.worker import SERVICE, LocalWorker
from surelane_ingest.ingest_settings import IngestSettings
from surelane_ingest.wiring import running as running_ingest
from surelane_service.cron import Cron
from surelane_service.engine import Engine
from surelane_service.pool import close_pool, create_pool
from surelane_service.service_settings import DEMO_BOT_TOKEN, DEMO_SIGNING_SECRET, load_settings
from surelane_service.webhooks import sign
from surelane_worker import Handlers
from surelane_worker.handling.outcomes import Pause, duration
from surelane_worker.handling.registry import registered_in
from surelane_worker.wiring import with_answers
from surelane_worker.worker_settings import WorkerSettings

if TYPE_CHECKING:
    from slack_bolt import App
    from slack_bolt.async_app import AsyncApp

LOCALHOST = "127.0.0.1"
NOWHERE = f"http://{LOCALHOST}:9"
_MORE = (
    *("agent_session_stopped", "assistant_thread_context_changed", "assistant_thread_started"),
    *("entity_details_requested", "function_executed", "reaction_added", "reaction_removed"),
)
MORE_EVENTS = {name: f"slack.{name}" for name in ("message.channels", *_MORE)}
"""Subscriptions that a bot without a manifest gets if it handles their kinds."""
PATIENCE = 30.0
"""Seconds that a test waits until the bot is idle."""
FIRST_LOOK, LONGEST_PAUSE = 0.001, 0.02
"""Seconds between two looks whether the bot is idle. The queue gives no signal as an event ends."""

_BUSY = """
select exists (select from agent.event where claimed_by is not null and vt > agent.clock())
    or exists (select from agent.cron where not paused and next_at <= agent.clock())
    or exists (select from agent.event as e where e.vt <= agent.clock()
        and (agent.why_waiting(e.id)).reason in ('due', 'running', 'group_busy', 'ended'))
"""
"""Whether there is something to do now. ``why_waiting`` sees what was committed since the statement began."""
_NEXT = """
select min(at) from (
    select vt from agent.event where claimed_by is null and vt < 'infinity'
    union all select next_at from agent.cron where not paused
    union all select due_at from agent.limit_note
) as due (at) where at > agent.clock() and at <= $1
"""
# Workers lived through the time that is skipped.
_SKIP = """
with skipped as (update agent.test_clock set ahead = ahead + $1)
update agent.worker set seen_at = seen_at + $1 where died_at is null
"""
_READY = """
select exists (select from agent.worker where name = $1 and cardinality(kinds) > 0)
    and (select count(*) from agent.cron) >= $2
"""
_CONNECTED = "select exists (select from pg_stat_activity where datname = $1 and application_name = $2)"
_WAKE = "select pg_notify('agent_event', payload) from unnest(array['', 'interactive']) as payload"


class Bot:
    """The bot under test: its queue, its clock, and a worker that can be killed."""

    slack: Slack
    """Where people write to it."""
    queue: Queue
    """The bot's queue: enqueue jobs, cancel and reschedule them. Call :meth:`idle` after that."""

    def __init__(
        self, database: "BotDatabase", ingest: "Webhooks", simulator: Simulator, client: SimulatorClient
    ) -> None:
        self.queue = Queue(database.pool)
        self.slack = Slack(simulator, client, self.idle, lambda: self.events)
        self._database = database
        self._ingest = ingest
        self._simulator = simulator
        self.crashes = Crashes(self._crash)
        """Where the worker may be killed."""
        self._ahead = 0.0
        self._start: Callable[[], Awaitable[LocalWorker]] | None = None
        self._worker: LocalWorker | None = None
        self._restart: asyncio.Task[None] | None = None
        simulator.workspace.now = simulator.interactions.now = lambda: time.time() + self._ahead

    @property
    def database_url(self) -> str:
        """The URI of the test's database, as its owner: for tables and connections of your own."""
        return self._database.server.uri(self._database.name, OWNER)

    @property
    def events(self) -> list[Story]:
        """All events of the test, in the order in which they were stored, and where each is now."""
        return self._database.stories(self.crashes.tracebacks)

    async def idle(self, within: float = PATIENCE) -> None:
        """Wait until nothing is left to do now: what is scheduled, suspended or retried later stays.

        Raises:
            AssertionError: the bot still runs after ``within`` seconds.
        """
        pause, what = FIRST_LOOK, None
        try:
            async with asyncio.timeout(within):
                while what := await self._busy():
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
        except TimeoutError:
            told = [f"the bot is not idle after {within:g} s: {what}", *map(str, self.events)]
            raise AssertionError("\n".join(told)) from None

    async def advance(self, by: Pause, *, schedules: bool = True) -> None:
        """Let time pass for the queue and for Slack, without waiting for it.

        What becomes due in it happens in order: retries, schedules, sleeps, timeouts of waits, jobs of later.

        Args:
            by: a timedelta, seconds, or text such as ``"10m"``.
            schedules: false: they stand still, as paused ones do. What they miss is not made up for.
        """
        await self.idle()
        end = await self._database.ask("select agent.clock() + $1::interval", duration(by))
        async with nullcontext() if schedules else self._database.paused_schedules():
            while (due := await self._database.ask(_NEXT, end)) is not None:
                await self._skip_to(due)
            await self._skip_to(end)

    def killed_at(self, point: str) -> AbstractContextManager[None]:
        """Kill the worker where a handler first reaches a point in the block. A fresh worker goes on.

        Args:
            point: ``"step NAME"``: the step is stored. ``"in step NAME"``: its function has run, and its result is not
                stored. ``"wait NAME"``: the handler is suspended. ``"start"``: a handler is about to run. ``"end"``: it
                has returned, and is not settled.

        Raises:
            ValueError: there is no such point.
            AssertionError: no handler reached it in the block.
        """
        return self.crashes.at(point)

    async def webhook(self, name: str, payload: Any) -> int:  # noqa: ANN401 - any JSON value
        """Send a signed webhook to the trigger ``name``; return the HTTP status."""
        status = await self._ingest.send(name, payload)
        await self.idle()
        return status

    async def work(self, start: Callable[[], Awaitable[LocalWorker]]) -> None:
        """Start the first worker. Those after a kill start in the same way."""
        self._start = start
        self._worker = await start()

    async def stop(self) -> None:
        """Kill the worker: its database is about to go."""
        if self._restart is not None:
            await asyncio.wait([self._restart])
        if self._worker is not None:
            await self._worker.kill()

    def _crash(self) -> None:
        self._restart = asyncio.create_task(self._begin_anew())

    async def _begin_anew(self) -> None:
        dead, start = self._worker, self._start
        if dead is None or start is None:
            raise RuntimeError("no worker runs")
        await dead.kill()
        await self._database.rescue(dead.settings.name)
        self._worker = await start()

    async def _busy(self) -> str | None:
        """Return what the bot has to do now; ``None`` if it has nothing to do."""
        if (restart := self._restart) is not None:
            await restart
            if self._restart is restart:
                self._restart = None
        if self._worker is not None and self._worker.is_busy:
            return "the worker holds claims"  # without a look into the database
        if any(not delivery.answered.is_set() for delivery in self._simulator.sender.deliveries.values()):
            return "ingest has not answered Slack"
        if await self._database.ask(_BUSY) or self._restart is not None:
            return "an event or a schedule is due, or a worker starts again"
        return None

    async def _skip_to(self, moment: datetime) -> None:
        skipped = await self._database.skip_to(moment)
        self._ahead += skipped.total_seconds()
        self._simulator.scheduled.post_due()
        if self._worker is not None:
            self._worker.look_at_schedules()
        await self.idle()


@dataclass(frozen=True)
class BotDatabase:
    """A test's database: connections as a superuser and as the worker's role."""

    server: PostgresServer
    name: str
    admin: Connection
    pool: Pool
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, query: str, *arguments: object) -> Any:  # noqa: ANN401 - any SQL type
        """Return a query's first value. Calls take turns: a worker may start again while a test waits."""
        async with self._turn:
            return await self.admin.fetchval(query, *arguments)

    def stories(self, tracebacks: dict[int, str]) -> list[Story]:
        """Return all events. The server's thread asks, because a failed check cannot await."""

        async def ask() -> list[Story]:
            async with connected(self.server.admin, database=self.name) as connection:
                return await stories(connection, tracebacks)

        return self.server.portal.call(ask)

    async def skip_to(self, moment: datetime) -> timedelta:
        """Set the queue's clock, wake the worker, and return how much time was skipped."""
        skipped: timedelta = await self.ask("select greatest($1 - agent.clock(), interval '0')", moment)
        await self.ask(_SKIP, skipped)
        await self.ask(_WAKE)
        return skipped

    @asynccontextmanager
    async def paused_schedules(self) -> AsyncIterator[None]:
        """Pause the schedules that run, and resume them at the end of the block, as an operator does."""
        async with self._turn:
            running = await self.admin.fetch("select * from agent.cron where not paused")
        for each in running:
            await self.ask("select agent.pause_cron($1, true, null)", each["name"])
        try:
            yield
        finally:
            now = await self.ask("select agent.clock()")
            for each in running:
                cron = Cron(each["schedule"], each["time_zone"], each["jitter"], each["name"])
                await self.ask("select agent.pause_cron($1, false, $2)", each["name"], cron.next_firing(now))

    async def rescue(self, worker: str) -> None:
        """End the claims of a killed worker once the server has noticed the end of its sessions.

        A claim that it had sent may be executed until then.
        """
        while await self.ask(_CONNECTED, self.name, SERVICE):  # noqa: ASYNC110 - the server gives no signal of it
            await asyncio.sleep(FIRST_LOOK)
        engine, key, remaining = Engine(self.pool), None, 1
        while remaining:
            lost = dict((await engine.watch_sessions("the test")).lost)
            key = lost.get(worker, key)
            if key is not None:
                _, remaining = await engine.rescue_worker(worker, key, lost_for=timedelta(), by="the test")
            if remaining:
                await asyncio.sleep(FIRST_LOOK)


@dataclass(frozen=True)
class Webhooks:
    """Ingest's address, and the secrets of its triggers: a new name gets one as it is first used."""

    url: str
    settings: IngestSettings

    async def send(self, name: str, payload: Any) -> int:  # noqa: ANN401 - any JSON value
        """Send a signed webhook; return the HTTP status."""
        known = self.settings.trigger_secrets
        (key, *_) = known.setdefault(name, [SecretBytes(secrets.token_bytes(32))])
        body = json.dumps(payload).encode()
        headers = sign(f"test-{secrets.token_hex(8)}", body, [key.get_secret_value()])
        headers["Content-Type"] = "application/json"
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/v1/triggers/{name}", data=body, headers=headers) as response,
        ):
            return response.status


@asynccontextmanager
async def running_bot(
    server: PostgresServer,
    given: "Handlers | App | AsyncApp",
    manifest: Path | None,
    model: str | None = None,
) -> AsyncIterator[Bot]:
    """Run a bot with these handlers, or with this Bolt app, for the length of the block.

    Agents use ``model``, unless a variable names one.
    """
    handlers = given if isinstance(given, Handlers) else handlers_of(given)
    subscriptions = _subscriptions(handlers, manifest)
    async with AsyncExitStack() as stack:
        name = await stack.enter_async_context(server.database())
        admin = await stack.enter_async_context(connected(server.admin, database=name))
        url = server.uri(name, "surelane_worker")
        pool = await create_pool(url, service="surelane-testing", max_size=2)
        stack.push_async_callback(close_pool, pool)
        more = {"merge_mentions": False} if not isinstance(given, Handlers) else {}
        ingest_settings = _ingest_settings(server.uri(name, "surelane_ingest"), subscriptions, **more)
        ingest = await stack.enter_async_context(running_ingest(ingest_settings, measured=False))
        webhooks = Webhooks(f"http://{LOCALHOST}:{ingest.port}", ingest_settings)
        slack_url, simulator = await stack.enter_async_context(
            serving_simulator(_simulator_settings(webhooks.url, subscriptions, manifest))
        )
        if not isinstance(given, Handlers):
            stack.enter_context(in_place_of_slack(f"{slack_url}/api/"))
        client = await stack.enter_async_context(SimulatorClient(slack_url))
        database = BotDatabase(server, name, admin, pool)
        bot = Bot(database, webhooks, simulator, client)
        observed = Handlers()
        observed.middleware(bot.crashes.around)
        fake = {"model": model, "model_url": slack_url + FAKE_MODEL_PATH} if model == FAKE_MODEL else {}
        stack.enter_context(agents_use(**({} if os.environ.get("SURELANE_MODEL") else fake)))
        observed.include(with_answers(handlers, _worker_settings(url, slack_url)))

        async def start() -> LocalWorker:
            worker = LocalWorker(_worker_settings(url, slack_url), observed, bot.crashes.engine)
            await worker.start()
            ready = (_READY, worker.settings.name, len(registered_in(observed).schedules()))
            while not await database.ask(*ready):  # noqa: ASYNC110 - the queue gives no signal of it
                await asyncio.sleep(LONGEST_PAUSE / 2)
            return worker

        stack.push_async_callback(bot.stop)
        await bot.work(start)
        yield bot


@asynccontextmanager
async def running_slack() -> AsyncIterator[str]:
    """Run a simulated Slack without an app for the length of the block; yield its Web API's address."""
    async with serving_simulator(_simulator_settings(NOWHERE, frozenset(), None)) as (url, _):
        yield f"{url}/api/"


def _subscriptions(handlers: Handlers, manifest: Path | None) -> frozenset[str]:
    if manifest is not None:
        return read_manifest(manifest).events
    kinds = {kind for handler in registered_in(handlers).all() for kind in handler.kinds}
    return DOCUMENTED.events | {name for name, kind in MORE_EVENTS.items() if kind in kinds}


def _ingest_settings(database: str, subscriptions: frozenset[str], **more: bool) -> IngestSettings:
    given: JSON = {"database_url": database, "host": LOCALHOST, "port": 0, "private_port": 0}
    given |= {"slack_api_url": f"http://{LOCALHOST}/api/", "signing_secret": DEMO_SIGNING_SECRET}
    given |= {"event_types": subscriptions, "drain_timeout": "1s", "database_budget": PATIENCE}
    return load_settings(IngestSettings, **given, **more)


def _simulator_settings(
    ingest: str, subscriptions: frozenset[str], manifest: Path | None
) -> SimulatorSettings:
    given: JSON = {"host": LOCALHOST, "port": 0, "ingest_url": ingest, "posting": True, "manifest": manifest}
    given |= {"subscriptions": subscriptions, "timeout": PATIENCE, "retry_delays": ()}
    given |= dict.fromkeys(("public_url", "state", "database_url", "operator_database_url"))
    return load_settings(SimulatorSettings, **given)


def _worker_settings(database: str, slack: str) -> WorkerSettings:
    given: JSON = {"database_url": database, "slack_api_url": f"{slack}/api/", "slack_limits": "off"}
    given |= {"slack_bot_token": DEMO_BOT_TOKEN, "notifications": True}
    return load_settings(WorkerSettings, **given, name=f"test-worker-{secrets.token_hex(4)}")
