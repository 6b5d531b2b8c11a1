"""In any outage of the database, each answer is 200 for a stored event, or makes Slack try again."""

import asyncio
import signal
from contextlib import suppress

import aiohttp

from tests.processes import service
from tests.system.ingest_client import Slack, mention, settings
from tests.system.restartable import NAME, restartable

CUT = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'surelane-ingest'"


async def test_a_database_that_is_away_or_read_only_is_told_and_work_goes_on_when_it_is_back() -> None:
    """The budget is half of the default, so that Slack's three seconds hold on a busy machine too."""
    async with restartable() as postgres, aiohttp.ClientSession() as session:
        env = settings(postgres.uri("surelane_ingest"), SURELANE_DATABASE_BUDGET="1s")
        await postgres.stop()
        async with service("surelane_ingest", env, ready="/livez") as ingest, asyncio.timeout(200):
            slack, refused = Slack(session, ingest.url), mention()

            async def readiness() -> tuple[int, str]:
                async with session.get(ingest.private_url + "/readyz") as probe:
                    return probe.status, await probe.text()

            async def back() -> None:
                """Send the event as Slack does, until it is stored and ingest is ready."""
                while (await slack.event(refused)).status != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
                while (await readiness())[0] != 200:  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(0.2)

            listens = False
            while not listens:
                with suppress(aiohttp.ClientConnectionError):
                    listens = (await slack.send("GET", "/", b"", {})).status == 404
            assert (await slack.event(refused)).status == 503
            assert (await readiness())[0] == 503
            await postgres.start()
            await back()
            await postgres.execute(f"alter database {NAME} set default_transaction_read_only = on")
            await postgres.execute(CUT)
            refused = mention()
            assert (await slack.event(refused)).status == 503
            status, why = await readiness()
            assert (status, "does not take events" in why) == (503, True)
            await postgres.execute(f"alter database {NAME} reset default_transaction_read_only")
            await back()
            async with postgres.connected() as connection:
                assert await connection.fetchval("select count(*) from agent.event") == 2
            await postgres.execute(CUT)  # while they are idle
            assert await ingest.child.stop(signal.SIGTERM, 20) == 0
