"""Build the worker from its settings, and stop its parts in an order that loses no event."""

import asyncio
import gc
import importlib
import sys
from collections.abc import Collection
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from surelane import __version__
from surelane.calls import Pool
from surelane.codec import SealedError, codec_of
from surelane.errors import INSTALL, SettingsError, SurelaneError
from surelane_service.engine import Engine
from surelane_service.installations import Installations
from surelane_service.logs import configure_logs, get_logger
from surelane_service.manifest import bot_events, found_manifest, slash_commands
from surelane_service.pool import LOCK_TIMEOUT, opened_pool
from surelane_service.probes import private_app, serving_private
from surelane_service.service_settings import load_settings, warn_of_misspelled, warn_of_unverified
from surelane_service.subscriptions import TYPES, doubts, untaken
from surelane_service.telemetry.setup import configure_telemetry
from surelane_worker.assembly import CLAIM_TIMEOUT, CONNECTIONS, SERVICE, STATEMENT_TIMEOUT, Assembly, Pools
from surelane_worker.builtin import questions
from surelane_worker.builtin.messages import Authors, failure_hooks
from surelane_worker.duties import beside
from surelane_worker.extensions import adapted, extension_for, extensions, package_of, start_extensions
from surelane_worker.handling.handler import HandlersError
from surelane_worker.handling.registry import Handlers, registered_in
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.readiness import require_connections, until_schema_fits, why_unready
from surelane_worker.observing.tracing import Observer, Tracing
from surelane_worker.slack.client import SlackClients, slack_clients
from surelane_worker.slack.limiter import Limiter
from surelane_worker.slack.limits import SlackLimits, rules_of
from surelane_worker.slack.simulated import use_simulator
from surelane_worker.slack.tokens import Refresher
from surelane_worker.worker_settings import BUILT_IN_HANDLERS, WorkerSettings

YOUNG = 20_000
"""Objects that may be made before a collection looks for cycles among them.

By default 700: a claim makes more, so collections traversed all events that wait. Counts of references free nearly all.
"""
SETTING = "SURELANE_HANDLERS"
_log = get_logger("surelane_worker")


async def main(stop: asyncio.Event) -> None:
    """Run the worker until ``stop`` is set, then drain it."""
    settings = load_settings(WorkerSettings)
    configure_logs(SERVICE, settings.log_level)
    warn_of_misspelled(WorkerSettings)
    warn_of_unverified(settings.database_url)
    handlers = _handlers(settings)
    telemetry = configure_telemetry(SERVICE, __version__, statements=True)
    metrics = Metrics()
    metrics.publish(sorted(registered_in(handlers).by_kind()), pushed=telemetry.pushes_metrics)
    tracer = telemetry.tracer
    tracing = None if tracer is None else Tracing(tracer, linked=settings.process_span == "linked")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, telemetry.shutdown)
        pools = await _pools(settings, stack)
        limiter = None
        if settings.slack_limits != "off":
            rules = partial(rules_of, apps=settings.slack_limits)
            limiter = Limiter(SlackLimits(pools.settles), metrics, rules)
            stack.push_async_callback(limiter.close)
        slack = await stack.enter_async_context(
            slack_clients(settings, traced=tracing is not None, limiter=limiter)
        )
        # Freeze imported objects: full collections then do not traverse them while events are handled.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG)
        refresher = await _refresher(settings, slack, stack)
        # Its connection is its own: looks at data keys wait for nothing else.
        looks = await _pool(settings, stack, 1, lock_timeout=LOCK_TIMEOUT)
        codec = codec_of(settings.encryption_keys, looks, on=settings.encrypt_events)
        observer = Observer(metrics, tracing)
        worker = Assembly(settings, handlers, pools, slack, observer, refresher=refresher, codec=codec)
        await _serve(stop, worker)


async def _refresher(
    settings: WorkerSettings, slack: SlackClients, stack: AsyncExitStack
) -> Refresher | None:
    """Return what finds the tokens of installs, if there are any. Its connections are its own: no poll waits for it."""
    keys = settings.encryption_keys
    if settings.client_id is None or settings.client_secret is None or keys is None:
        return None
    pool = await _pool(settings, stack, 2, lock_timeout=LOCK_TIMEOUT)
    secret = settings.client_secret.get_secret_value()
    return Refresher(Installations(pool, keys), slack.once, settings.client_id, secret)


async def _pools(settings: WorkerSettings, stack: AsyncExitStack) -> Pools:
    return Pools(
        leases=await _pool(settings, stack, 1, lock_timeout=LOCK_TIMEOUT, worker=settings.name),
        settles=await _pool(
            settings, stack, 3, lock_timeout=LOCK_TIMEOUT, within=CLAIM_TIMEOUT, worker=settings.name
        ),
        looks=await _pool(settings, stack, 2, statement_timeout=CLAIM_TIMEOUT),
        sweeps=await _pool(settings, stack, 1),
        handlers=await _pool(settings, stack, 3),
    )


async def _pool(settings: WorkerSettings, stack: AsyncExitStack, size: int, **options: Any) -> Pool:  # noqa: ANN401 - of create_pool
    options = {"statement_timeout": STATEMENT_TIMEOUT, "prepared": settings.notifications} | options
    opening = opened_pool(settings.database_url, service=SERVICE, max_size=size, **options)
    return await stack.enter_async_context(opening)


def _handlers(settings: WorkerSettings) -> Handlers:
    """Load the handlers that the settings name. Refuse those that need a token which is not set."""
    if not settings.speaks_to_slack:
        use_simulator(settings.slack_api_url)
    loaded = load_handlers(settings.handlers)
    start_extensions(settings)
    if settings.handlers == BUILT_IN_HANDLERS and not settings.answers:
        raise SettingsError(
            "SLACK_BOT_TOKEN is not set, nor SLACK_CLIENT_SECRET: the built-in handlers need a token to answer in Slack"
        )
    manifest = settings.manifest or _beside(settings.handlers)
    subscribed = bot_events(manifest)
    warn_of_doubts(_kinds(loaded), settings.event_types, subscribed, slash_commands(manifest))
    together = with_answers(loaded, settings) if settings.answers else loaded
    taken = subscribed if settings.event_types is None else settings.event_types
    if taken is not None:
        warn_of_untaken(_kinds(together), taken)
    return together


def _beside(path: str) -> Path | None:
    """Return the manifest beside the handlers: in their module's folder, or in one above it within the package."""
    name = path.partition(":")[0]
    module = sys.modules[name]
    depth = name.count(".") + (2 if hasattr(module, "__path__") else 1)
    return found_manifest(*Path(module.__file__).parents[:depth]) if module.__file__ else None


def _kinds(handlers: Handlers) -> set[str]:
    return {kind for handler in registered_in(handlers).all() for kind in handler.kinds}


def load_handlers(path: str) -> Handlers:
    """Import ``module:attribute``: handlers, or what an installed extension makes handlers of, such as a Bolt app.

    Modules are found in the working directory too.

    Raises:
        HandlersError: it does not name a :class:`Handlers` with at least one handler, or the import failed.
    """
    found = load_named(path)
    if not isinstance(found, Handlers):
        found = handlers_from(found, path)
    if not registered_in(found).all():
        raise HandlersError(f"{SETTING}: {path} has no handlers: register one with @handlers.on(...)")
    return found


def handlers_from(found: object, path: str) -> Handlers:
    """Return the handlers that an extension makes of an object. ``path`` names it in an error.

    Raises:
        HandlersError: no installed extension makes handlers of it.
    """
    if (handlers := adapted(found)) is not None:
        return handlers
    sort = type(found).__name__
    if (package := extension_for(found)) is not None:
        raise HandlersError(f"{SETTING}: {path} is a {sort}; install what runs it: {INSTALL} {package}")
    raise HandlersError(f"{SETTING}: {path} is a {sort}, not a surelane_worker.Handlers")


def load_named(path: str) -> Any:  # noqa: ANN401 - what a team wrote
    """Import ``module:attribute``, and return what it names."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise HandlersError(f"{SETTING}={path!r}: write module:attribute, such as my_bot:handlers")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except HandlersError:
        raise
    except (Exception, SystemExit) as error:
        if (package := package_of(error)) is not None:
            reason = f"it needs {package}, which is not installed: {INSTALL} {package}"
            raise HandlersError(f"{SETTING}: cannot import {module_name}: {reason}") from None
        reason = " ".join(f"{type(error).__name__}: {error}".split())  # the last line is what people look at
        raise HandlersError(f"{SETTING}: cannot import {module_name}: {reason}") from error
    found = getattr(module, attribute, None)
    if found is None:
        raise HandlersError(f"{SETTING}: {module_name} has no attribute {attribute!r}")
    return found


def warn_of_doubts(
    kinds: Collection[str],
    taken: Collection[str] | None,
    subscribed: Collection[str] | None = None,
    commands: Collection[str] | None = None,
) -> None:
    """Log the kinds of handlers whose events can never arrive.

    ``taken``: the event types that ingest takes. ``subscribed``, ``commands``: those in the app's manifest.
    """
    for kind, reason in doubts(kinds, taken, subscribed, commands).items():
        _log.warning("a handler's events can never arrive", kind=kind, reason=reason)


def warn_of_untaken(kinds: Collection[str], taken: Collection[str]) -> None:
    """Log the event types that ingest stores and this worker does not handle."""
    for name in untaken(kinds, taken):
        told = "ingest stores an event type that this worker does not handle; its events wait for a worker that does"
        _log.warning(told, type=name, setting=f"{TYPES}, or bot_events of the manifest")


def with_answers(loaded: Handlers, settings: WorkerSettings) -> Handlers:
    """Add what speaks in Slack beside a team's handlers: the extensions, answers, what was left open, failures."""
    together = Handlers()
    together.include(loaded)
    for extension in extensions():
        together.include(extension.beside())
    together.include(questions.handlers)
    if not settings.bot_messages:
        registered_in(together).middlewares.append(Authors())
    if settings.failure_reply != "off":
        together.include(failure_hooks(loaded))
    return together


async def _serve(stop: asyncio.Event, worker: Assembly) -> None:
    settings, queue = worker.settings, Engine(worker.pools.looks)
    worker.watch.publish()
    app = private_app(partial(why_unready, queue, stop, worker.claimers[0].failing))
    async with serving_private(app, settings) as port:
        await until_schema_fits(queue, stop)
        if stop.is_set():
            _log.info("stopped")
            return
        if worker.settings.notifications:  # a pooler counts its own
            await require_connections(worker.pools.looks, CONNECTIONS)
        with suppress(SurelaneError, SealedError):  # the first event of no workspace makes it, too
            await worker.codec.ready("")  # for programs, which make none
        _log.info("working", worker=settings.name, kinds=worker.kinds, private_port=port)
        try:
            async with beside(*worker.duties()):
                await worker.claim(stop)
                await worker.position.resign()
                await worker.drain(settings.drain_timeout.total_seconds())
        finally:
            await worker.hang_up()
            await worker.announcer.retire()
        _log.info("stopped")
