"""A thousand installed workspaces: what their tokens cost the worker, and how they are refreshed under traffic."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.oauth.installation_store import Installation
from slack_sdk.web.async_client import AsyncWebClient

from benchmarks import consumer, figures, ours
from benchmarks.bench import Bench, at_rest
from benchmarks.consumer import Moment
from benchmarks.fill import fill
from benchmarks.result import Bars, Result, Table, Verdict
from surelane.calls import Pool
from surelane.encryption.keys import Keyring, new_key
from surelane_dev.simulator.installs import Asked
from surelane_dev.simulator.server import serving_simulator
from surelane_dev.simulator.settings import SimulatorSettings
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.workspace.demo import workspace_of
from surelane_service.installations import Installations, Owner
from surelane_service.pool import close_pool, create_pool
from surelane_service.settings import DEMO_CLIENT_ID, DEMO_CLIENT_SECRET, load_settings
from surelane_worker.slack.client import ResponseUrls, SlackClients
from surelane_worker.slack.refresh import Refresher
from surelane_worker.slack.tokens import Tokens

WORKSPACES = 1000
TOKEN, ONE, MANY = "one token for all", "one installed workspace", "all workspaces installed"
MOST_LOST = 0.05
WARM = 0.2
"""The share of the events after which all workspaces have been looked up."""
PERIOD = 60
"""Seconds for which a lookup is kept."""
WORKERS = 3
CALLERS = 8
AWAY = "http://127.0.0.1:9/api/"


@dataclass(frozen=True)
class Rotation:
    """What came of the refresh of all tokens under traffic.

    Attributes:
        tokens: how many there were.
        seconds: how long it took.
        asked: how often the workers asked Slack for a refresh.
        granted: how often it granted one. It refuses a refresh token that was used before.
        calls, failed: the calls beside them, and how many of them failed.
    """

    tokens: int
    seconds: float
    asked: int
    granted: int
    calls: int
    failed: int


@dataclass(frozen=True)
class Run:
    """The figures of one drain, after all workspaces have been looked up.

    Attributes:
        rate: events per second.
        cpu: the worker's CPU seconds per event.
        instructions: the worker's instructions per event; ``None`` where they cannot be counted.
        looking: the CPU seconds of all lookups together, which come once per cache period.
    """

    rate: float
    cpu: float
    instructions: float | None
    looking: float


async def measure(bench: Bench) -> Result:
    """Drain queues with one token, one workspace and a thousand, in turn; then refresh all tokens under traffic."""
    workspaces, key = bench.size(WORKSPACES, 50), new_key()
    count = bench.size(100_000, 20_000)
    rounds: dict[str, list[Run]] = {}
    for _ in range(bench.rounds):
        for name, installed in ((TOKEN, 0), (ONE, 1), (MANY, workspaces)):
            rounds.setdefault(name, []).append(await _drained(bench, installed, count, key))
            done = rounds[name][-1]
            bench.say(
                f"{name}: {figures.rate(done.rate)} events/s, {figures.microseconds(done.cpu)}, {done.instructions}"
            )
    async with bench.database() as database, _pool(database.worker) as pool:
        rotation = await rotated(pool, workspaces)
    return _result(bench, workspaces, count, rounds, rotation)


async def _drained(bench: Bench, workspaces: int, count: int, key: str) -> Run:
    """Drain events of so many installed workspaces; of none: with one token."""
    installs = {"SLACK_CLIENT_ID": "1.1", "SLACK_CLIENT_SECRET": "unused", "SURELANE_ENCRYPTION_KEYS": key}
    settings = installs if workspaces else {"SLACK_BOT_TOKEN": "xoxb-one"}
    async with bench.database() as database:
        async with at_rest(database) as connection:
            await fill(connection, count)
            spread = "update agent.event set event = jsonb_set(event, '{team_id}', to_jsonb('T' || id % $1))"
            await connection.execute(spread, max(workspaces, 1))
            installations = Installations(connection, Keyring([key]))
            for nth in range(workspaces):
                await installations.save(
                    Installation(app_id="A1", team_id=f"T{nth}", user_id="U1", bot_token=f"xoxb-{nth}")
                )
        async with (
            at_rest(database) as connection,
            consumer.worker(
                database.worker, "reading", concurrency=10, SLACK_API_URL=AWAY, **settings
            ) as worker,
        ):
            await worker.handled(count, ours.WITHIN)
        return _steady(worker.moments, count)


def _steady(moments: Sequence[Moment], count: int) -> Run:
    first, last = moments[0], moments[-1]
    warm = next(each for each in moments if each.count >= count * WARM)
    cpu = (last.cpu - warm.cpu) / (last.count - warm.count)
    looking = warm.cpu - first.cpu - cpu * (warm.count - first.count)
    counted = None
    if last.instructions is not None and warm.instructions is not None:
        counted = (last.instructions - warm.instructions) / (last.count - warm.count)
    return Run((last.count - warm.count) / (last.at - warm.at), cpu, counted, max(looking, 0.0))


@asynccontextmanager
async def _pool(uri: str) -> AsyncIterator[Pool]:
    pool = await create_pool(uri, service="benchmarks", max_size=8)
    try:
        yield pool
    finally:
        await close_pool(pool)


async def rotated(pool: Pool, count: int) -> Rotation:
    """Let several workers refresh ``count`` tokens that expire soon, while calls use all tokens."""
    settings = load_settings(
        SimulatorSettings, port=0, posting=False, subscriptions=frozenset(), token_lives=timedelta(hours=2)
    )
    clock = asyncio.get_running_loop().time
    async with serving_simulator(settings) as (url, simulator), aiohttp.ClientSession() as session:
        installations = Installations(pool, Keyring([new_key()]))
        owners = [await _installed(simulator, installations, nth) for nth in range(count)]
        simulator.installs.token_lives = timedelta(hours=12)
        simulator.api.calls = deque()  # of any length
        responses = ResponseUrls(None)

        def client(token: str | None) -> AsyncWebClient:
            return AsyncWebClient(token, f"{url}/api/", session=session, retry_handlers=[])

        def clients(token: str) -> SlackClients:
            return SlackClients(client(token), client(token), responses)

        refreshers = [
            Refresher(installations, client(None), DEMO_CLIENT_ID, DEMO_CLIENT_SECRET) for _ in range(WORKERS)
        ]
        stored = installations.await_one, installations.other_reporter
        tokens = [Tokens(each.find, clients, *stored) for each in refreshers]
        traffic = [asyncio.create_task(_calls(tokens[nth % WORKERS], owners, nth)) for nth in range(CALLERS)]
        began = clock()
        await asyncio.gather(*(_all_refreshed(each) for each in refreshers))
        took = clock() - began
        for task in traffic:
            task.cancel()
        made = await asyncio.gather(*traffic)
        await responses.close()
    asked = sum(call["method"] == "oauth.v2.access" for call in simulator.api.calls)
    granted = len(simulator.installs.grants) - count
    return Rotation(count, took, asked, granted, sum(done for done, _ in made), sum(lost for _, lost in made))


async def _installed(simulator: Simulator, installations: Installations, nth: int) -> Owner:
    workspace = workspace_of(f"T0LOAD{nth:04}", f"Load {nth}", None, simulator.workspace.app_id)
    simulator.installs.workspaces[workspace.team_id] = workspace
    code = simulator.installs.approve(Asked("http://127.0.0.1/", "chat:write"), workspace, wide=False)
    given = simulator.installs.exchange(code, "")
    await installations.save(
        Installation(
            app_id=given["app_id"],
            team_id=workspace.team_id,
            user_id=given["authed_user"]["id"],
            bot_token=given["access_token"],
            bot_refresh_token=given["refresh_token"],
            bot_token_expires_in=given["expires_in"],
        )
    )
    return Owner(workspace.team_id)


async def _all_refreshed(refresher: Refresher) -> None:
    """Refresh until nothing expires soon that no other worker refreshes."""
    while await refresher.installations.expiring(timedelta(hours=3), 1):
        await refresher.refresh_expiring()


async def _calls(tokens: Tokens, owners: Sequence[Owner], first: int) -> tuple[int, int]:
    """Call Slack for one workspace after the other until cancelled. Return the calls and how many failed."""
    done = lost = 0
    try:
        while True:
            clients = await tokens.clients_of(owners[(first + done * CALLERS) % len(owners)])
            done += 1
            try:
                if clients is None:
                    lost += 1
                else:
                    await clients.client.auth_test()
            except SlackApiError:
                lost += 1
    except asyncio.CancelledError:
        return done, lost


def _result(
    bench: Bench, workspaces: int, count: int, rounds: dict[str, list[Run]], rotation: Rotation
) -> Result:
    rates, cpu, looking = (
        {name: figures.median([getattr(run, field) for run in runs]) for name, runs in rounds.items()}
        for field in ("rate", "cpu", "looking")
    )
    counted = {
        name: figures.median([run.instructions for run in runs if run.instructions is not None])
        for name, runs in rounds.items()
        if any(run.instructions is not None for run in runs)
    }
    # Lookups take their share of each second of the worker's core.
    left = 1 - max(looking[MANY] - looking[ONE], 0.0) / PERIOD
    cost = counted or cpu
    shares = {name: left * cost[name] / cost[MANY] for name in (ONE, TOKEN)}
    unit = "the worker's instructions" if counted else "the worker's CPU"
    refreshed = f"{rotation.granted:,} granted, {rotation.asked:,} asked for, in {rotation.seconds:.0f} s"
    return Result(
        title="Many workspaces",
        how=f"""
            One worker drains a queue of {count:,} events whose handlers read the payload: with one
            token for all, with one workspace that has installed the app, and with {workspaces:,}
            that have and whose events come in turn. The figures begin when {WARM:.0%} of the events
            are handled: then each workspace has been looked up, which it is again after a minute.
            The targets are on {unit} per event, with the CPU of the lookups of all workspaces once a
            minute: the machine had other work, which the rates show. Instructions leave out the
            kernel's. The loads follow each other, {bench.rounds} rounds. Then {WORKERS} workers refresh
            {rotation.tokens:,} tokens that expire soon, as fast as they can, while {CALLERS} callers
            call a simulated Slack with the tokens of all workspaces in turn.
        """,
        table=Table(
            ("tokens", "events/s", "lowest…highest", "CPU per event", "instructions", "CPU of all lookups"),
            [
                (
                    name,
                    figures.rate(rates[name]),
                    figures.spread([run.rate for run in runs]),
                    figures.microseconds(cpu[name]),
                    f"{counted[name] / 1000:.1f} k" if name in counted else "",
                    figures.milliseconds(looking[name]),
                )
                for name, runs in rounds.items()
            ],
        ),
        verdicts=[
            *(
                Verdict(
                    f"{workspaces:,} workspaces: at least {1 - MOST_LOST:.2f} of the events, by {unit}, with {name}",
                    figures.ratio(share),
                    share >= 1 - MOST_LOST,
                )
                for name, share in shares.items()
            ),
            Verdict(
                "each token refreshed once",
                refreshed,
                rotation.asked == rotation.granted == rotation.tokens,
            ),
            Verdict(
                "no call fails meanwhile", f"{rotation.failed} of {rotation.calls:,}", not rotation.failed
            ),
        ],
        plots=[Bars("One worker drains a queue", "events/s", rates)],
    )
