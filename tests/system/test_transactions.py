"""A step in a team's own transaction commits with the team's data, once, over every driver."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import asyncpg
import psycopg
import pytest

from extensions.drivers.tests.system.callers import TRANSACTIONS, engine_of
from surelane import UnsupportedConnection
from surelane.calls import Connection
from surelane.errors import OutcomeUnknown
from surelane.events import Event
from surelane_encryption.data_keys import DataKeys
from surelane_encryption.keys import Keyring
from surelane_encryption.sealing import Sealing
from surelane_service.engine import Engine
from surelane_service.logs import get_logger
from surelane_worker.errors import StepMismatchError
from surelane_worker.handling.fence import Fence
from surelane_worker.handling.steps import Steps
from surelane_worker.handling.threads import Threads
from surelane_worker.handling.transactions import Transaction
from surelane_worker.slack.notes import ClaimLostError
from tests.databases import as_role
from tests.sql.migrations import connected
from tests.system.transaction_handlers import DRIVERS
from tests.system.worker import ended, enqueue, worker

KEY = "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE="
EACH = pytest.mark.parametrize("driver", DRIVERS)


@pytest.fixture(scope="module")
async def team(shared_database: str) -> AsyncIterator[str]:
    """Make the team's table; return the URI of the team's role."""
    async with connected(shared_database) as owner:
        await owner.execute(
            "create table public.charge (who text); grant all on public.charge to surelane_producer"
        )
        yield as_role(shared_database, "surelane_producer")
        await owner.execute("drop table public.charge")


@pytest.fixture
async def observer(shared_database: str, team: str) -> AsyncIterator[Connection]:  # noqa: ARG001 - its table
    async with connected(shared_database) as connection:
        await connection.execute("truncate public.charge, agent.event, agent.step")
        yield connection


@pytest.fixture
async def engine(shared_database: str) -> AsyncIterator[Engine]:
    async with connected(as_role(shared_database, "surelane_worker")) as connection:
        yield Engine(connection)


async def attempt(engine: Engine) -> Event:
    """Claim the one event of a test."""
    (event,) = await engine.claim_events(["here"], 1, worker="w")
    return event


@pytest.fixture
async def event(observer: Connection, engine: Engine) -> Event:
    await enqueue(observer, "here")
    return await attempt(engine)


async def again(engine: Engine, event: Event) -> Event:
    """End the claim, and return a later attempt's claim."""
    await engine.settle([(event.id, event.claim, "release", None)])
    return await attempt(engine)


def transaction_of(engine: Engine, event: Event, database: object, function: Any) -> Transaction:
    async def stands() -> None:
        pass

    steps = Steps(Fence(engine, event, get_logger("test"), stands), Threads(lambda: None))
    return Transaction(steps, database, function)


async def transact(
    engine: Engine, event: Event, database: object, function: Any, *arguments: object
) -> object:
    return await transaction_of(engine, event, database, function).run("charge", arguments, {})


async def charged(observer: Connection) -> tuple[int, int]:
    """Return how often the team's data says that it was charged, and how many steps have a result."""
    return (
        await observer.fetchval("select count(*) from public.charge"),
        await observer.fetchval("select count(*) from agent.step where finished_at is not null"),
    )


@EACH
async def test_the_data_and_the_step_commit_together_once_after_a_failure_rolled_both_back(
    driver: str, team: str, observer: Connection, engine: Engine, event: Event
) -> None:
    opened, function = DRIVERS[driver]
    runs: list[int] = []

    def fails() -> None:
        raise RuntimeError("no money")

    async with opened(team) as connection:
        with pytest.raises(Exception, match="no money"):
            await transact(engine, event, connection, function, fails)
        assert await charged(observer) == (0, 0)
        event = await again(engine, event)
        assert await transact(engine, event, connection, function, lambda: runs.append(1)) == "paid"
    assert await charged(observer) == (1, 1)
    async with opened(team) as connection:
        event = await again(engine, event)
        assert await transact(engine, event, connection, function, lambda: runs.append(2)) == "paid"
    assert runs == [1]
    assert await charged(observer) == (1, 1)
    assert await observer.fetchval("select who from public.charge") == "surelane_producer"


@EACH
async def test_a_lost_claim_rolls_the_data_back(
    driver: str, team: str, observer: Connection, engine: Engine, event: Event, shared_database: str
) -> None:
    opened, function = DRIVERS[driver]

    def loses() -> None:
        with psycopg.connect(shared_database) as other:
            other.execute("select * from agent.settle(array[%s::int8], array[1])", [event.id])

    async with opened(team) as connection:
        with pytest.raises(ClaimLostError):
            await transact(engine, event, connection, function, loses)
    assert await charged(observer) == (0, 0)


@pytest.mark.parametrize("driver", [name for name in TRANSACTIONS if name != "django"])
async def test_a_connection_in_a_transaction_is_refused(
    driver: str, team: str, engine: Engine, event: Event
) -> None:
    """Of Django, each thread has a connection of its own, and the function gets a new thread."""
    async with TRANSACTIONS[driver](team) as caller:
        await caller.run("select 1")
        with pytest.raises(Exception, match="in a transaction already"):
            await transact(engine, event, caller.connection, len)


async def test_what_cannot_commit_together_with_the_step_is_refused(
    team: str, observer: Connection, engine: Engine, event: Event
) -> None:
    asynchronous, blocking = DRIVERS["asyncpg"][1], DRIVERS["sqlalchemy"][1]

    async def commits(connection: Any) -> None:
        await connection.execute("commit; begin")

    async with DRIVERS["asyncpg"][0](team) as connection:
        with pytest.raises(StepMismatchError, match="it ended it"):
            await transact(engine, event, connection, commits)
    with (
        engine_of(team, isolation_level="AUTOCOMMIT") as made,
        made.connect() as connection,
        pytest.raises(StepMismatchError, match="commits each statement"),
    ):
        await transact(engine, event, connection, blocking, lambda: None)
    with psycopg.connect(team) as connection, pytest.raises(StepMismatchError, match="asynchronous"):
        await transact(engine, event, connection, asynchronous, lambda: None)
    with pytest.raises(UnsupportedConnection):
        await transact(engine, event, object(), asynchronous, lambda: None)
    assert (await charged(observer))[1] == 0


async def test_the_stored_result_is_encrypted_where_events_are(
    team: str, observer: Connection, shared_database: str
) -> None:
    await enqueue(observer, "here")
    opened, function = DRIVERS["psycopg"]
    async with connected(as_role(shared_database, "surelane_worker")) as own:
        engine = Engine(own, Sealing(DataKeys(own, Keyring([KEY])), on=True))
        event = await attempt(engine)
        for _ in range(2):
            async with opened(team) as connection:
                assert await transact(engine, event, connection, function, lambda: None) == "paid"
            assert "paid" not in await observer.fetchval("select s::text from agent.step as s")
            event = await again(engine, event)
    assert await charged(observer) == (1, 1)


async def test_who_has_no_token_stores_no_step(team: str, engine: Engine, event: Event) -> None:
    await engine.offer_step(event.id, event.claim, "charge", 1, "secret")
    program = await asyncpg.connect(team)
    for step, token, answer in (
        ("charge", "guess", "stale"),
        ("other", "secret", "stale"),
        ("charge", "secret", "done"),
        ("charge", "secret", "stale"),
    ):
        async with program.transaction():
            xact = await program.fetchval("select pg_current_xact_id()::text")
            assert answer == await program.fetchval(
                "select agent.finish_step($1, 1, $2, 1, $3, $4, null, '1', 0)", event.id, step, token, xact
            )
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await program.execute("select agent.open_step(1, 1, 'x', 1, '1')")
    await program.close()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "psycopg-async", "sqlalchemy-session", "django"])
async def test_a_killed_worker_charges_once(
    driver: str, team: str, observer: Connection, shared_database: str, tmp_path: Path
) -> None:
    settings = {
        "SURELANE_HANDLERS": "tests.system.transaction_handlers:handlers",
        "SURELANE_WORKER_NAME": "mortal",
    }
    log = tmp_path / "log"
    payload = {"log": str(log), "uri": team, "driver": driver}
    identity = await enqueue(observer, "charge", payload, max_attempts=10)
    for _ in range(2):
        async with worker(shared_database, ready="", **settings) as running, asyncio.timeout(60):
            await running.child.wait()
            assert running.child.exit_code == -signal.SIGKILL, running.output
    assert await charged(observer) == (1, 1)
    async with worker(shared_database, ready="", **settings):
        row = await ended(observer, identity, within=60)
    assert (row["outcome"], json.loads(row["result"])) == ("completed", "paid")
    assert log.read_text().split("\n")[:-1] == [
        "ran",
        "died before the commit",
        "ran",
        "died after the commit",
    ]
    assert await charged(observer) == (1, 1)


class LosesAnswers:
    """A driver that commits, and then finds its connection broken."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._driver.transaction() as connection:
            yield connection
        raise OutcomeUnknown("the connection broke")


async def test_a_commit_whose_answer_is_lost_is_no_failure(
    team: str, observer: Connection, engine: Engine, event: Event
) -> None:
    opened, function = DRIVERS["asyncpg"]
    async with opened(team) as connection:
        transaction = transaction_of(engine, event, connection, function)
        transaction.driver = cast("Any", LosesAnswers(transaction.driver))
        assert await transaction.run("charge", (lambda: None,), {}) == "paid"
    assert await charged(observer) == (1, 1)
