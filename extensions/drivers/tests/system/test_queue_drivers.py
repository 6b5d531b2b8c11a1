"""The queue does the same over every driver: one contract, held to by a program with each of them."""

import asyncio
import inspect
import json
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
import wrapt
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker
from sqlalchemy.orm import scoped_session, sessionmaker

from extensions.drivers.tests.system import callers
from surelane import Continuation, Job, Queue, errors
from surelane.calls import Connection
from surelane_drivers import SyncQueue
from tests.databases import Server
from tests.system.pooler import pooled
from tests.system.shared import shared_connection

DRIVERS = pytest.mark.parametrize("begin", callers.TRANSACTIONS.values(), ids=callers.TRANSACTIONS)
_numbers = count()


@pytest.fixture
def key() -> str:
    """Return a key that no other test uses: they share a database."""
    return f"key-{next(_numbers)}"


observer = shared_connection
"""Sees what is committed."""


async def stored(observer: Connection, key: str) -> Any:
    return await observer.fetchrow("select * from agent.event where item_key = $1", key)


@DRIVERS
async def test_a_committed_transaction_brings_the_job_with_every_field(
    begin: callers.Begin, shared_database: str, observer: Connection, key: str
) -> None:
    told = asyncio.Event()

    def tell(*_: object) -> None:
        told.set()

    await observer.add_listener("agent_event", tell)
    at = datetime(2033, 5, 18, 3, 33, 20, 123456, tzinfo=UTC)
    payload = {"text": "ü 🚀 ' \" \\ % %s $1", "n": [1, 2.5, None, True], "at": at, "big": 2**60}
    span = SpanContext(2**100, 2**40, is_remote=False, trace_flags=TraceFlags(1))
    async with begin(shared_database) as caller:
        with use_span(NonRecordingSpan(span)):
            identity = await caller.queue.enqueue(
                "driven",
                payload,
                dedupe_key=key,
                item_key=key,
                run_at=at,
                max_attempts=7,
                group_key=key,
                enqueued_by="a program",
                deadline=at + timedelta(hours=1),
                priority=0,
                limit_key="l",
            )
        assert await caller.queue.enqueue("driven", item_key=key) == identity
        assert await stored(observer, key) is None
        assert not told.is_set()
    row = await stored(observer, key)
    assert json.loads(row["event"])["at"] == at.isoformat()
    assert json.loads(row["event"])["text"] == payload["text"]
    assert (row["id"], row["kind"], row["vt"]) == (identity, "driven", at)
    assert row["deadline"] == at + timedelta(hours=1)
    assert (row["dedupe_key"], row["group_key"], row["max_attempts"]) == (key, key, 7)
    assert (row["enqueued_by"], row["traceparent"]) == ("a program", f"00-{2**100:032x}-{2**40:016x}-01")
    async with asyncio.timeout(60):
        await told.wait()
    await observer.remove_listener("agent_event", tell)


@DRIVERS
async def test_every_method_answers_alike(
    begin: callers.Begin, shared_database: str, observer: Connection, key: str
) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    async with begin(shared_database) as caller:
        queue = caller.queue
        answers = await queue.enqueue_many([Job("driven", item_key=f"{key}-{n}") for n in (1, 2, 1)])
        assert [answer.duplicate for answer in answers] == [False, False, True]
        assert answers[0].id == answers[2].id
        assert await queue.reschedule(f"{key}-1", later) == "rescheduled"
        assert await queue.signal(f"{key}-1", "go", {"n": None}) == "sent"
        assert await queue.signal_id(answers[0].id, "go") == "sent"
        assert await queue.signal("unknown", "go") is None
        assert await queue.signal_id(2**40, "go") is None
        assert await queue.cancel(f"{key}-2", by="me", reason="why") == "cancelled"
        assert await queue.cancel("unknown") is None
        whole = await queue.fan_out(
            [Job("part", {"n": [n]}) for n in range(2)], Continuation("whole", item_key=key)
        )
        children = await queue.children(whole)
        assert [(child.payload, child.result, child.error) for child in children] == [
            ({"n": [0]}, None, None),
            ({"n": [1]}, None, None),
        ]
        assert isinstance(await queue.insert_event(json.dumps({"type": "app_mention", "text": "hi"})), int)
        assert await queue.answer_event(whole, '{"n": 1}') == "unknown"
    assert (await stored(observer, f"{key}-1"))["vt"] == later


@DRIVERS
@pytest.mark.parametrize(
    ("job", "sqlstate"),
    [(Job("driven", {"secret": "x\0"}), "22P05"), (Job("driven", {"secret": 1}, max_attempts=0), "22023")],
    ids=["nul", "bound"],
)
async def test_a_refused_call_says_why_and_the_next_that_the_transaction_is_aborted(
    begin: callers.Begin, shared_database: str, key: str, job: Job, sqlstate: str
) -> None:
    async with callers.rolled_back(begin, shared_database) as caller:
        for unsent in (
            caller.queue.enqueue_many([Job("driven", object())]),
            caller.queue.enqueue_many([Job("driven", float("nan"))]),
            caller.queue.enqueue_many([Job("driven", run_at=datetime(2030, 1, 1))]),  # noqa: DTZ001 - without a time zone on purpose
            caller.queue.reschedule(key, datetime(2030, 1, 1)),  # noqa: DTZ001
            caller.queue.cancel("\ud800"),
        ):
            with pytest.raises(errors.InvalidInput):
                await unsent
        assert await caller.queue.enqueue("driven", item_key=key), "nothing was sent: the transaction goes on"
        with pytest.raises(errors.InvalidInput) as refused:
            await caller.queue.enqueue_many([job])
        assert refused.value.sqlstate == sqlstate
        assert "secret" not in str(refused.value)
        assert isinstance(refused.value.__cause__, asyncpg.PostgresError | psycopg.Error)
        with pytest.raises(errors.TransactionAborted, match="abort"):
            await caller.queue.enqueue("driven")


@pytest.mark.parametrize("library", ["sqlalchemy", "django"])
async def test_a_transaction_that_the_library_knows_to_be_broken_is_aborted(
    library: str, shared_database: str
) -> None:
    """It sends nothing then."""
    async with callers.rolled_back(callers.TRANSACTIONS[library], shared_database) as caller:
        if library == "sqlalchemy":
            caller.connection.invalidate()
        else:
            caller.connection.set_rollback(True)
        with pytest.raises(errors.TransactionAborted, match="roll it back"):
            await caller.queue.enqueue("driven")


@DRIVERS
async def test_conflicts_and_missing_rights_are_told_apart_and_a_rollback_takes_the_job_along(
    begin: callers.Begin, shared_database: str, observer: Connection, key: str
) -> None:
    async with callers.rolled_back(begin, shared_database) as caller:
        await caller.queue.enqueue("driven", item_key=key)
        with pytest.raises(errors.Conflict) as taken:
            await caller.queue.fan_out([Job("driven", item_key=key)], Continuation("then"))
        assert taken.value.sqlstate == "23505"
    async with callers.rolled_back(begin, shared_database) as caller:
        await caller.queue.enqueue("driven", item_key=key)
        await caller.run("set local role agent_ingest")
        with pytest.raises(errors.Forbidden):
            await caller.queue.enqueue("driven")
    assert await stored(observer, key) is None


@DRIVERS
async def test_a_transaction_that_breaks_stores_nothing(
    begin: callers.Begin, shared_database: str, server: Server, observer: Connection, key: str
) -> None:
    async with callers.rolled_back(begin, shared_database) as caller:
        await caller.queue.enqueue("driven", item_key=key)
        await end_session(caller, server, key)
        for _ in range(2):
            with pytest.raises((errors.DatabaseUnavailable, errors.TransactionAborted)) as broken:
                await caller.queue.enqueue("driven")
            assert not isinstance(broken.value, errors.OutcomeUnknown)
    assert await stored(observer, key) is None


@pytest.mark.parametrize("begin", callers.ALONE.values(), ids=callers.ALONE)
async def test_a_call_of_its_own_that_breaks_may_have_been_stored(
    begin: callers.Begin, shared_database: str, server: Server, observer: Connection, key: str
) -> None:
    async with begin(shared_database) as caller:
        await caller.queue.enqueue("driven", item_key=key)
        assert await stored(observer, key)
        with pytest.raises(errors.InvalidInput):
            await caller.queue.enqueue("")
        await end_session(caller, server, key)
        with pytest.raises(errors.DatabaseUnavailable) as broken:
            await caller.queue.enqueue("driven")
        # asyncpg reads the end of the session before it sends anything.
        assert isinstance(broken.value, errors.OutcomeUnknown) or isinstance(
            broken.value.__cause__, asyncpg.InterfaceError
        )


async def end_session(caller: Any, server: Server, name: str) -> None:
    """End the caller's session behind its back."""
    await caller.run(f"select set_config('application_name', '{name}', false)")
    await server.execute(
        f"select pg_terminate_backend(pid, 60000) from pg_stat_activity where application_name = '{name}'"
    )


async def test_the_callers_own_reading_of_json_and_rows_does_not_matter(
    shared_database: str, key: str
) -> None:
    connection = await asyncpg.connect(shared_database)
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    queue = Queue(connection)
    whole = await queue.fan_out([Job("part", {"n": 1})], Continuation("whole", item_key=key))
    assert [child.payload for child in await queue.children(whole)] == [{"n": 1}]
    await connection.close()
    for factory in (psycopg.RawCursor, psycopg.ClientCursor):
        with psycopg.connect(
            shared_database, cursor_factory=factory, row_factory=psycopg.rows.scalar_row
        ) as other:
            assert [child.payload for child in SyncQueue(other).children(whole)] == [{"n": 1}]
            assert [child.payload for child in SyncQueue(wrapt.ObjectProxy(other)).children(whole)] == [
                {"n": 1}
            ]
    async with await psycopg.AsyncConnection.connect(
        shared_database, cursor_factory=psycopg.AsyncRawCursor
    ) as raw:
        assert len(await Queue(raw).children(whole)) == 1


async def test_scoped_sessions_work_as_their_sessions_do(
    shared_database: str, observer: Connection, key: str
) -> None:
    with callers.engine_of(shared_database) as engine:
        scoped = scoped_session(sessionmaker(engine))
        SyncQueue(scoped).enqueue("driven", item_key=f"{key}-sync")
        scoped.rollback()
        identity = SyncQueue(scoped).enqueue("driven", item_key=f"{key}-sync")
        scoped.commit()
        scoped.remove()
    assert (await stored(observer, f"{key}-sync"))["id"] == identity
    made = async_sessionmaker(callers.async_engine_of("asyncpg", shared_database))
    asynchronous = async_scoped_session(made, scopefunc=asyncio.current_task)
    await Queue(asynchronous).enqueue("driven", item_key=f"{key}-async")
    await asynchronous.commit()
    await asynchronous.remove()
    assert await stored(observer, f"{key}-async")


async def test_what_is_no_connection_is_refused_with_the_names_of_those_that_are(
    shared_database: str,
) -> None:
    with psycopg.connect(shared_database) as connection:
        engine = sqlalchemy.create_engine("sqlite://")
        for given in (
            connection,
            engine,
            engine.connect(),
            callers.djangos(shared_database),
            "postgresql://",
            None,
        ):
            with pytest.raises(
                errors.UnsupportedConnection, match=r"Queue cannot use a .*Queue takes an asyncpg"
            ):
                Queue(given)  # type: ignore[arg-type]
        with pytest.raises(errors.UnsupportedConnection, match=r"SyncQueue takes a psycopg\.Connection"):
            SyncQueue(engine)
        with pytest.raises(
            errors.UnsupportedConnection, match=r"sqlite\+pysqlite.*needs postgresql\+psycopg"
        ):
            SyncQueue(engine.connect()).enqueue("driven")
        engine.dispose()


def test_both_queues_have_the_same_methods() -> None:
    def methods(of: type) -> dict[str, Any]:
        found = inspect.getmembers(of, inspect.isfunction)
        return {name: inspect.signature(method) for name, method in found if not name.startswith("_")}

    assert methods(SyncQueue) == methods(Queue)
    assert not any(map(inspect.iscoroutinefunction, vars(SyncQueue).values()))


async def test_behind_a_transaction_pooler_connections_without_prepared_statements_work(
    shared_database: str, observer: Connection, key: str
) -> None:
    """Each call may reach another session of the server."""
    async with pooled(shared_database) as uri:
        connection = await asyncpg.connect(uri, statement_cache_size=0)
        with psycopg.connect(uri, autocommit=True, prepare_threshold=None) as other:
            queues = Queue(connection), SyncQueue(other)
            for number in range(7):  # psycopg prepares what it has sent five times
                await queues[0].enqueue("driven", item_key=f"{key}-a-{number}")
                queues[1].enqueue("driven", item_key=f"{key}-p-{number}")
        await connection.close()
    count = "select count(*) from agent.event where starts_with(item_key, $1)"
    assert await observer.fetchval(count, f"{key}-") == 14
