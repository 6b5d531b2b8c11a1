"""A worker that cannot start says why, and exits with the right code."""

import aiohttp
import pytest

from surelane.calls import Connection
from surelane_service.lifecycle import EXIT_SETTINGS
from tests import forked
from tests.processes import clean_environment, service, until
from tests.system.worker import environment, worker


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"DATABASE_URL": ""}, "DATABASE_URL is not set"),
        ({"SURELANE_HANDLERS": "nowhere:handlers"}, "cannot import nowhere: ModuleNotFoundError"),
        ({"SURELANE_HANDLERS": "tests.system.worker:HANDLERS"}, "is a str, not a surelane_worker.Handlers"),
        ({"SURELANE_HANDLERS": "", "SLACK_API_URL": ""}, "SLACK_BOT_TOKEN is not set"),
        ({"SURELANE_CONCURRENCY": "many"}, "SURELANE_CONCURRENCY: Input should be a valid integer"),
    ],
)
async def test_settings_that_cannot_be_used_are_named(settings: dict[str, str], message: str) -> None:
    env = {**clean_environment(), **environment("postgresql://surelane@127.0.0.1/surelane"), **settings}
    process = await forked.start("surelane_worker", env=env)
    output, _ = await process.communicate()
    assert process.returncode == EXIT_SETTINGS
    assert message in output.decode()
    assert "Traceback" not in output.decode()


async def test_ready_worker_says_so_and_lives_without_a_database(database: str) -> None:
    started = service("surelane_worker", environment(database), imported=False)
    async with started as running, aiohttp.ClientSession() as session:
        for path in ("/livez", "/readyz"):
            async with session.get(running.private_url + path) as response:
                assert response.status == 200


async def test_worker_without_a_schema_is_alive_but_not_ready(empty_database: str) -> None:
    started = worker(empty_database, ready="", DATABASE_URL=empty_database)
    async with started as running, aiohttp.ClientSession() as session:
        await until(lambda: any("waiting for the database" in line for line in running.output), within=60)
        async with session.get(running.private_url + "/readyz") as response:
            assert response.status == 503
            assert "schema" in (await response.json())["reason"]
        async with session.get(running.private_url + "/livez") as response:
            assert response.status == 200
    assert '"stopped"' in running.output[-1]
    assert not any('"working"' in line for line in running.output), "it never did"


async def test_a_database_that_is_not_there_is_named_in_words() -> None:
    nowhere = {"DATABASE_URL": "postgresql://surelane@/surelane?host=/nowhere", "SURELANE_PRIVATE_PORT": "0"}
    async with worker("postgresql://", ready="", **nowhere) as running:
        await until(lambda: any("No such file or directory" in line for line in running.output), within=60)


async def test_a_worker_that_gets_too_few_connections_says_how_many_it_needs(
    database: str, connection: Connection
) -> None:
    name = await connection.fetchval("select current_database()")
    await connection.execute(f'alter database "{name}" connection limit 3')
    env = {**clean_environment(), **environment(database), "SURELANE_PRIVATE_PORT": "0"}
    process = await forked.start("surelane_worker", env=env)
    output, _ = await process.communicate()
    assert process.returncode == EXIT_SETTINGS
    assert "a worker needs 11 connections, and this login gets 3 at most" in output.decode()
