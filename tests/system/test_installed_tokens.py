"""Workers answer each workspace with its own token, wait for installs, and refresh tokens once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import aiohttp
import asyncpg
import pytest
from benchmarks.rotation import rotated
from slack_sdk.web.async_client import AsyncWebClient

from surelane.calls import Connection, Pool
from surelane.queue import Queue
from surelane_dev.simulator.installs import AuthorizeRequest
from surelane_dev.simulator.posting.events import envelope, events_of
from surelane_dev.simulator.server import serving_simulator
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.simulator_settings import SimulatorSettings
from surelane_dev.simulator.workspace.model import Posted
from surelane_encryption.keys import Keyring, new_key
from surelane_ingest.installing import installation_of
from surelane_operator.changes import Changes
from surelane_service.installations import BOT, Installations, Owner
from surelane_service.service_settings import DEMO_CLIENT_ID, DEMO_CLIENT_SECRET, load_settings
from surelane_worker.slack.tokens import Refresher
from tests.processes import service
from tests.system.worker import ended, environment

KEY = new_key()
EAST, WEST, BAKERY = "T0ACMEEAST", "T0ACMEWEST", "T0BAKERY01"


@dataclass
class Stand:
    """A simulated Slack, whose events the test stores, and the stored installations."""

    simulator: Simulator
    url: str
    connection: Connection
    installations: Installations

    async def install(self, team: str, *, wide: bool = False) -> Owner:
        workspace = self.simulator.installs.workspaces[team]
        asked = AuthorizeRequest("http://127.0.0.1/", "chat:write,reactions:write,channels:history")
        code = self.simulator.installs.approve(asked, workspace, wide=wide)
        installation = installation_of(self.simulator.installs.exchange(code, ""), {"bot_id": "B1"})
        await self.installations.save(installation)
        owner = Owner.of(installation.enterprise_id, installation.team_id, wide)
        assert owner is not None
        return owner

    async def mention(
        self, team: str, text: str, thread: str | None = None, *, wide: bool = False
    ) -> tuple[int, str]:
        """Store the event of a mention; return the event's id and the message's ts."""
        workspace = self.simulator.installs.workspaces[team]
        channel = workspace.channel("general")
        person = next(user for user in workspace.users.values() if not user.is_bot)
        assert channel is not None
        message = workspace.post(channel, person.id, f"<@{workspace.bot.id}> {text}", thread_ts=thread)
        (inner,) = events_of(workspace, Posted(message), {"app_mention"})
        stored = await Queue(self.connection).insert_event(json.dumps(envelope(workspace, inner, wide=wide)))
        return stored, message.ts

    def said(self, team: str) -> list[str]:
        workspace = self.simulator.installs.workspaces[team]
        return [
            message.text
            for channel in workspace.channels.values()
            for message in channel.messages.values()
            if message.by_app
        ]

    def refreshers(self, count: int, session: aiohttp.ClientSession, pool: Pool) -> list[Refresher]:
        installations = Installations(pool, Keyring([KEY]))
        client = AsyncWebClient(None, f"{self.url}/api/", session=session, retry_handlers=[])
        return [Refresher(installations, client, DEMO_CLIENT_ID, DEMO_CLIENT_SECRET) for _ in range(count)]


@asynccontextmanager
async def stand(connection: Connection, **settings: Any) -> AsyncIterator[Stand]:
    chosen = load_settings(
        SimulatorSettings, port=0, posting=False, subscriptions=frozenset(), retry_delays=(), **settings
    )
    async with serving_simulator(chosen) as (url, simulator):
        yield Stand(simulator, url, connection, Installations(connection, Keyring([KEY])))


def worker(database: str, slack: Stand, **others: str) -> Any:
    settings = {
        "SURELANE_HANDLERS": "tests.system.installed_handlers:handlers",
        "SLACK_API_URL": f"{slack.url}/api/",
        "SLACK_CLIENT_ID": DEMO_CLIENT_ID,
        "SLACK_CLIENT_SECRET": DEMO_CLIENT_SECRET,
        "SURELANE_ENCRYPTION_KEYS": KEY,
        "SURELANE_BACKOFF_BASE": "200ms",
    }
    return service("surelane_worker", environment(database, **(settings | others)))


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    async with asyncpg.create_pool(database, min_size=0, max_size=5) as opened:
        yield opened


async def put_off(connection: Connection, event: int) -> datetime:
    """Wait until an event waits for an install; return when it is tried again by itself."""
    look = (
        "select vt from agent.event where id = $1 and claimed_by is null and vt > agent.clock()"
        " and exists (select from agent.install_wait where event_id = id)"
    )
    async with asyncio.timeout(60):
        while (vt := await connection.fetchval(look, event)) is None:  # noqa: ASYNC110 - a snooze tells nothing
            await asyncio.sleep(0.02)
    found: datetime = vt
    return found


async def test_what_people_of_others_do_in_our_views_and_messages_is_for_our_installation(
    database: str, connection: Connection
) -> None:
    theirs = {"team": {"id": EAST}, "user": {"id": "U9", "team_id": EAST}, "is_enterprise_install": False}
    view = {"id": "V1", "callback_id": "form", "team_id": BAKERY, "app_installed_team_id": BAKERY}
    message = {"bot_id": "B1", "app_id": "A1", "team": BAKERY, "ts": "1.1"}
    used: list[dict[str, Any]] = [
        *({"type": kind, "view": view} for kind in ("view_submission", "view_closed", "block_actions")),
        {"type": "block_actions", "message": message, "api_app_id": "A1", "channel": {"id": "C1"}},
    ]
    async with stand(connection) as slack:
        await slack.install(BAKERY)
        queue = Queue(connection)
        stored = [
            await queue.insert_event(json.dumps(theirs | each | {"trigger_id": f"{nth}"}))
            for nth, each in enumerate(used)
        ]
        async with worker(database, slack):
            rows = [await ended(connection, event) for event in stored]
    assert [json.loads(row["result"]) for row in rows] == [BAKERY] * 4


async def test_each_workspace_is_answered_with_its_own_token_once_it_has_the_app(
    database: str, connection: Connection
) -> None:
    async with stand(connection) as slack:
        await slack.install(BAKERY)
        await slack.install(EAST, wide=True)
        stored = [
            (await slack.mention(team, text, wide=wide))[0]
            for team, text, wide in ((BAKERY, "bread", False), (EAST, "east", True), (WEST, "west", True))
        ]
        first, ts = await slack.mention(WEST, "one")
        second, _ = await slack.mention(WEST, "two", ts)
        async with worker(database, slack):
            for event in stored:
                row = await ended(connection, event)
                assert row["outcome"] == "completed", row["errors"]
            assert (slack.said(BAKERY), slack.said(EAST), slack.said(WEST)) == (["bread"], ["east"], ["west"])
            await put_off(connection, first)
            reason, detail = await Changes(connection).why(first) or ("", "")
            assert (reason, detail.startswith(f"{WEST} until ")) == ("not_installed", True)
            await slack.install(WEST)
            for event in (first, second):
                row = await ended(connection, event)
                assert (row["outcome"], row["attempts"]) == ("completed", 1), row["errors"]
            slack.simulator.installs.uninstall(slack.simulator.installs.workspaces[BAKERY])
            await slack.install(BAKERY)  # the worker still has the token of before
            row = await ended(connection, (await slack.mention(BAKERY, "again"))[0])
            assert (row["outcome"], row["attempts"]) == ("completed", 2), row["errors"]
        assert slack.said(WEST) == ["west", "one", "two"]
        assert slack.said(BAKERY) == ["bread", "again"]


@pytest.mark.parametrize("sort", ["asynchronous", "synchronous"])
async def test_a_bolt_app_uses_the_same_installations(
    database: str, connection: Connection, sort: str
) -> None:
    async with stand(connection, token_lives=timedelta(hours=12)) as slack:
        await slack.install(BAKERY)
        stored, _ = await slack.mention(BAKERY, "bread")
        app = f"extensions.bolt.tests.system.apps.stored:{sort}"
        async with worker(database, slack, SURELANE_HANDLERS=app, SLACK_SIGNING_SECRET="unused"):
            row = await ended(connection, stored)
        assert row["outcome"] == "completed", row["errors"]
        assert slack.said(BAKERY) == ["bread"]


async def test_an_event_without_its_install_is_told_of_once_and_looked_at_ever_more_rarely(
    database: str, connection: Connection
) -> None:
    looked = (
        "select vt - claimed[claims] as pause, claimed[claims] - enqueued_at as waited"
        " from agent.event cross join array_upper(claimed, 1) as claims"
        " where id = $1 and claimed_by is null and claims >= 8"
    )
    async with stand(connection) as slack:
        async with worker(database, slack, SURELANE_BACKOFF_BASE="10ms", LOG_LEVEL="debug") as running:
            stored, _ = await slack.mention(BAKERY, "bread")
            async with asyncio.timeout(120):
                while (row := await connection.fetchrow(looked, stored)) is None:  # noqa: ASYNC110 - a snooze tells nothing
                    await asyncio.sleep(0.02)
            assert row["pause"] > row["waited"] / 3  # without growth, it would be a hundredth of a second
            await put_off(connection, stored)
            await slack.install(BAKERY)
            assert (await ended(connection, stored))["outcome"] == "completed"
        told = [json.loads(line)["level"] for line in running.output if "has not installed the app" in line]
        assert told.count("info") == 1
        assert told.count("debug") >= 7


async def test_an_event_waits_for_its_install_until_a_deadline(database: str, connection: Connection) -> None:
    async with stand(connection) as slack:
        stored, _ = await slack.mention(BAKERY, "bread")
        async with worker(database, slack, SURELANE_INSTALL_WAIT="1s"):
            row = await ended(connection, stored)
        assert (row["outcome"], row["reason"]) == ("failed", "not_installed")
        assert slack.said(BAKERY) == []


async def test_a_row_that_another_transaction_has_locked_holds_up_no_other_refresh(
    database: str, connection: Connection
) -> None:
    async with (
        stand(connection, token_lives=timedelta(hours=1)) as slack,
        aiohttp.ClientSession() as session,
        asyncpg.create_pool(database, server_settings={"lock_timeout": "100ms"}) as pool,
    ):
        for team in (EAST, WEST, BAKERY):
            await slack.install(team)
        slack.simulator.installs.token_lives = timedelta(hours=12)
        (refresher,) = slack.refreshers(1, session, pool)
        first = "select ctid from agent.installation where user_id = '' order by expires_at limit 1"
        async with connection.transaction():
            await connection.execute(f"select from agent.installation where ctid = ({first}) for update")
            assert await refresher.refresh_expiring() == 2
        assert await refresher.refresh_expiring() == 1


async def test_a_token_that_has_ended_is_refreshed_before_it_is_used(
    connection: Connection, pool: Pool
) -> None:
    async with stand(connection, token_lives=timedelta(0)) as slack, aiohttp.ClientSession() as session:
        owner = await slack.install(BAKERY)
        old = (await slack.installations.find(owner))[BOT]
        slack.simulator.installs.token_lives = timedelta(hours=12)
        found = await asyncio.gather(*(each.find(owner, BOT) for each in slack.refreshers(5, session, pool)))
        tokens = {rows[BOT].token for rows in found}
        assert (len(tokens), old.token in tokens) == (1, False)
        assert len(slack.simulator.api.calls) == 1


@pytest.mark.parametrize("fault", ["server_error", "refused"])
async def test_tokens_stay_when_slack_does_not_refresh_them(
    connection: Connection, pool: Pool, fault: str
) -> None:
    async with stand(connection, token_lives=timedelta(hours=1)) as slack, aiohttp.ClientSession() as session:
        owner = await slack.install(BAKERY)
        before = (await slack.installations.find(owner))[BOT]
        if fault == "refused":
            slack.simulator.installs.refreshes.clear()
        else:
            async with session.post(f"{slack.url}/control/faults", json={"kind": fault}) as added:
                assert added.status == 200
        (refresher,) = slack.refreshers(1, session, pool)
        assert await refresher.refresh_expiring() == 0
        rows = await refresher.find(owner, BOT)
        assert rows[BOT].token == before.token


async def test_all_tokens_are_refreshed_once_under_traffic_and_no_call_fails(pool: Pool) -> None:
    done = await rotated(pool, 60)
    assert (done.asked, done.granted, done.failed) == (60, 60, 0)
    assert done.calls > 0
