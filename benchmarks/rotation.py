"""Refresh the tokens of many installations under traffic, for a benchmark and a test."""

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

from surelane.calls import Pool
from surelane_dev.simulator.installs import AuthorizeRequest
from surelane_dev.simulator.server import serving_simulator
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.simulator_settings import SimulatorSettings
from surelane_dev.simulator.workspace.demo import workspace_of
from surelane_encryption.keys import Keyring, new_key
from surelane_service.installations import Installations, Owner
from surelane_service.pool import close_pool, create_pool
from surelane_service.service_settings import DEMO_CLIENT_ID, DEMO_CLIENT_SECRET, load_settings
from surelane_worker.slack.client import ResponseUrls, SlackClients
from surelane_worker.slack.tokens import BotTokens, Refresher

WORKERS = 3
CALLERS = 8


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


@asynccontextmanager
async def pool_of(uri: str) -> AsyncIterator[Pool]:
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
        responses = ResponseUrls(frozenset())

        def client(token: str | None) -> AsyncWebClient:
            return AsyncWebClient(token, f"{url}/api/", session=session, retry_handlers=[])

        def clients(token: str) -> SlackClients:
            return SlackClients(client(token), client(token), responses)

        refreshers = [
            Refresher(installations, client(None), DEMO_CLIENT_ID, DEMO_CLIENT_SECRET) for _ in range(WORKERS)
        ]
        tokens = [BotTokens(each, clients) for each in refreshers]
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
    code = simulator.installs.approve(
        AuthorizeRequest("http://127.0.0.1/", "chat:write"), workspace, wide=False
    )
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


async def _calls(tokens: BotTokens, owners: Sequence[Owner], first: int) -> tuple[int, int]:
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
