"""Programs encrypt what they enqueue, over every driver, with data keys that outlive their rollbacks."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import asyncpg
import django.db
import psycopg
import pytest

from extensions.drivers.tests.system.callers import TRANSACTIONS, Blocking, Caller, rolled_back
from surelane import (
    Continuation,
    DatabaseUnavailable,
    EncryptionFailed,
    InvalidInput,
    Job,
    OutcomeUnknown,
    Queue,
    UnsupportedConnection,
)
from surelane.calls import Connection
from surelane_drivers import SyncQueue
from surelane_encryption import Encryption
from surelane_encryption.keys import new_key
from tests.sql.migrations import connected

KEY, OTHER = new_key(), new_key()
SECRET = "the merger closes on friday"
AS_PRODUCER = "-c role=agent_producer"
OWN: dict[str, Callable[[Caller, str], Any]] = {
    "asyncpg": lambda _, uri: partial(asyncpg.connect, uri, server_settings={"role": "agent_producer"}),
    "psycopg": lambda _, uri: partial(psycopg.connect, uri, options=AS_PRODUCER),
    "psycopg-async": lambda _, uri: partial(psycopg.AsyncConnection.connect, uri, options=AS_PRODUCER),
    "sqlalchemy": lambda caller, _: caller.connection.engine.connect,
    "sqlalchemy-session": lambda caller, _: caller.connection.get_bind().connect,
    "sqlalchemy-psycopg-async": lambda caller, _: caller.connection.engine.connect,
    "sqlalchemy-asyncpg": lambda caller, _: caller.connection.engine.connect,
    "django": lambda _, __: django.db.connection.copy,
}
"""How a program of a driver gets connections of their own for the data keys."""
DRIVERS = pytest.mark.parametrize("driver", OWN)
_numbers = count()


def queue_of(caller: Caller, encryption: Encryption) -> Any:
    """Return an encrypting queue on the connection of a program."""
    if isinstance(caller.queue, Queue):
        return Queue(caller.connection, encryption=encryption)
    return Blocking(SyncQueue(caller.connection, encryption))


@pytest.fixture
def team() -> str:
    """Return a workspace that no other test uses."""
    return f"T{next(_numbers)}QUEUED"


@pytest.fixture(scope="module")
async def observer(shared_database: str) -> AsyncIterator[Connection]:
    """Connect to the database to see what is committed. No test before has left keys that these cannot open."""
    async with connected(shared_database) as connection:
        await connection.execute("delete from agent.data_key")
        yield connection
        await connection.execute("delete from agent.data_key")


@pytest.fixture
async def pool(shared_database: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(shared_database, min_size=0, max_size=2) as made:
        yield made


async def everything(observer: Connection) -> str:
    rows = await observer.fetch(
        "select e::text from agent.event as e union all select s::text from agent.signal as s"
    )
    return "\n".join(row[0] for row in rows)


@DRIVERS
async def test_every_method_stores_ciphertext_and_a_rollback_takes_no_key_along(
    driver: str, shared_database: str, observer: Connection, pool: Any, team: str
) -> None:
    secret = f"{SECRET} {team}x"
    begin = TRANSACTIONS[driver]
    async with begin(shared_database) as caller:
        encryption = Encryption(KEY, OWN[driver](caller, shared_database))
        if "sqlalchemy" not in driver and driver != "django":  # those are not the producer's own
            with pytest.raises(EncryptionFailed, match="has no data key yet, and this role makes none"):
                await queue_of(caller, encryption).enqueue("sealed", {"team_id": team, "text": secret})
    for workspace in (team, ""):
        await Encryption(KEY, pool).ready(workspace)
    async with rolled_back(begin, shared_database) as caller:
        encryption = Encryption(KEY, OWN[driver](caller, shared_database))
        await queue_of(caller, encryption).enqueue("sealed", {"team_id": team, "text": secret})
    keys = "select count(*) from agent.data_key where workspace = $1"
    assert await observer.fetchval(keys, team) == 1
    async with begin(shared_database) as caller:
        queue = queue_of(caller, encryption)
        await caller.run("set local role agent_producer")
        (one,) = await queue.enqueue_many([Job("sealed", {"team_id": team, "text": secret}, item_key=team)])
        assert await queue.signal(team, "said", {"text": secret}) == "sent"
        whole = await queue.fan_out([Job("part", {"text": secret})], Continuation("whole", {"text": secret}))
        await caller.run("reset role")
        inserted = await queue.insert_event(
            json.dumps({"type": "app_mention", "team": team, "channel": "C1", "user": "U1", "text": secret})
        )
        (child,) = await queue.children(whole)
        assert child.payload == {"text": secret}
        assert await queue.answer_event(whole, json.dumps(secret)) == "unknown"
        for event in ("[1", "[1]", '{"text": "\ud800"}'):
            with pytest.raises(InvalidInput, match="JSON"):
                await queue.insert_event(event)
        with pytest.raises(InvalidInput, match="JSON"):
            await queue.answer_event(whole, "NaN")
    assert secret not in await everything(observer)
    reader = Encryption(KEY, pool)
    for identity, group in ((one.id, None), (inserted, f"{team}:C1")):
        row = await observer.fetchrow(
            "select event, kind, group_key from agent.event where id = $1", identity
        )
        assert row is not None
        assert json.loads(await reader.open(row["event"]))["text"] == secret
        assert group is None or row["group_key"].startswith(group)
    assert await observer.fetchval(keys, team) == 1


async def test_a_repeated_event_without_an_id_is_a_duplicate(
    observer: Connection, pool: Any, team: str
) -> None:
    queue = Queue(pool, encryption=Encryption(KEY, pool))
    event = json.dumps({"type": "app_mention", "team": team, "text": SECRET})
    assert await queue.insert_event(event) == await queue.insert_event(event)
    await Queue(pool).enqueue("plain", {"text": f"{SECRET} {team}y"})
    assert f"{SECRET} {team}y" in await everything(observer), "without encryption a search finds the text"


async def test_threads_and_tasks_share_one_encryption(
    shared_database: str, observer: Connection, pool: Any, team: str
) -> None:
    looks = count()

    def connect() -> Any:
        next(looks)
        return psycopg.connect(shared_database)

    encryption = Encryption([KEY], connect)

    def enqueue(number: int) -> int:
        with psycopg.connect(shared_database) as connection:
            payload = {"team_id": team, "text": f"{number}"}
            return SyncQueue(connection, encryption).enqueue("sealed", payload)

    with ThreadPoolExecutor(4) as threads:
        ids = list(threads.map(enqueue, range(8)))
    assert next(looks) <= 8  # a look and the making of the key, for each thread at most
    rotated = Encryption([OTHER, KEY], pool)
    together = Queue(pool, encryption=rotated)
    ids += await asyncio.gather(
        *(together.enqueue("sealed", {"team_id": team, "text": "t"}) for _ in range(9))
    )
    rows = await observer.fetch("select event from agent.event where id = any($1)", ids)
    opened = [json.loads(await rotated.open(row["event"])) for row in rows]
    assert sorted(each["text"] for each in opened) == sorted([*map(str, range(8)), *["t"] * 9])
    assert await observer.fetchval("select count(*) from agent.data_key where workspace = $1", team) == 1
    with pytest.raises(EncryptionFailed, match="which SURELANE_ENCRYPTION_KEYS lacks"):
        await Queue(pool, encryption=Encryption(OTHER, pool)).enqueue("sealed", {"team_id": team})


async def test_a_pool_without_a_free_connection_and_a_database_that_is_away_store_nothing(
    shared_database: str, pool: Any, team: str
) -> None:
    away = partial(psycopg.connect, "host=127.0.0.1 port=1 connect_timeout=5")
    with psycopg.connect(shared_database, autocommit=True) as connection:
        queue = SyncQueue(connection, Encryption(KEY, away))
        with pytest.raises(DatabaseUnavailable) as failed:
            queue.enqueue("sealed", {"team_id": team})
        assert not isinstance(failed.value, OutcomeUnknown)
        broken = SyncQueue(connection, Encryption(KEY, lambda: connection))
        with connection.transaction(), pytest.raises(UnsupportedConnection, match="in a transaction"):
            broken.enqueue("sealed", {"team_id": team})
        assert not connection.closed
        stored = "select count(*) from agent.event where event ->> 'team_id' = %s"
        assert connection.execute(stored, (team,)).fetchone() == (0,)
        with pytest.raises(UnsupportedConnection, match="SyncQueue cannot wait"):
            SyncQueue(connection, Encryption(KEY, pool))
        waits = SyncQueue(
            connection, Encryption(KEY, lambda: psycopg.AsyncConnection.connect(shared_database))
        )
        with pytest.raises(UnsupportedConnection, match="SyncQueue cannot wait"):
            waits.enqueue("sealed", {"team_id": team})


@pytest.mark.parametrize("text", ["a\0b", "\ud83d", "\udc00\ud83d"])
async def test_text_that_postgresql_cannot_hold_is_refused_as_without_encryption(
    shared_database: str, pool: Any, team: str, text: str
) -> None:
    payload = {"team_id": team, "text": text}
    async with rolled_back(TRANSACTIONS["psycopg"], shared_database) as caller:
        source = partial(psycopg.connect, shared_database)
        for encryption in (None, Encryption(KEY, source)):
            blocking = SyncQueue(caller.connection, encryption)
            with pytest.raises(InvalidInput), caller.connection.transaction():
                blocking.enqueue("sealed", payload)
    async with pool.acquire() as connection:
        for encryption in (None, Encryption(KEY, pool)):
            queue = Queue(connection, encryption=encryption)
            with pytest.raises(InvalidInput):
                await queue.enqueue("sealed", payload)
            with pytest.raises(InvalidInput):
                await queue.insert_event(json.dumps(payload))
            with pytest.raises(InvalidInput):
                await queue.fan_out([Job("sealed", payload)], Continuation("whole"))
        with pytest.raises(InvalidInput, match="unsupported Unicode escape sequence"):
            await queue.signal(team, "said", payload)
        sound = {**payload, "text": "\\u0000 \\ud83d 😀"}
        identity = await queue.enqueue("sealed", sound)
        assert await connection.fetchval("select 1 from agent.event where id = $1", identity) == 1
        assert (
            await connection.fetchval("select count(*) from agent.event where event ->> 'team_id' = $1", team)
            == 1
        )
        await connection.execute("delete from agent.event where id = $1", identity)


def test_keys_that_cannot_be_used_are_refused_and_not_quoted() -> None:
    wrong: tuple[Any, ...] = ("", "short", [], [KEY, KEY])
    for keys in wrong:
        with pytest.raises(EncryptionFailed) as refused:
            Encryption(keys, lambda: None)
        assert "short'" not in str(refused.value)
    with pytest.raises(UnsupportedConnection, match="a function that returns a new connection"):
        Encryption(KEY, "postgresql://")  # type: ignore[arg-type]
