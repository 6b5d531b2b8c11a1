"""The client's error about a failed call is true: stored, not stored, or unknown."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import asyncpg
import psycopg
import pytest

from surelane import DatabaseUnavailable, InvalidInput, OutcomeUnknown, Queue, SurelaneError
from surelane.calls import Connection
from surelane_service.pool import Listener, close_pool, create_pool
from tests.databases import Server, as_role
from tests.processes import free_port
from tests.sql.migrations import becomes, connected
from tests.system.half_open import Proxy, half_open
from tests.system.shared import shared_connection


@pytest.fixture
async def wire(shared_database: str) -> AsyncIterator[Proxy]:
    async with half_open(as_role(shared_database, "surelane_worker")) as proxy:
        yield proxy


admin = shared_connection


async def stored(admin: Connection, key: str, service: str) -> bool:
    """Return whether the event is stored, once no session of the service is busy."""
    busy = "exists (select from pg_stat_activity where application_name = $1 and state <> 'idle')"
    await becomes(admin, f"select not {busy}", service)
    return bool(await admin.fetchval("select exists (select from agent.event where item_key = $1)", key))


async def verdict(queue: Queue, key: str) -> bool | None:
    """Return the client's verdict on an enqueue: stored, not stored, or ``None`` for unknown."""
    try:
        await queue.enqueue("cut", {"text": "x" * 2000}, item_key=key)
    except OutcomeUnknown:
        return None
    except SurelaneError:
        return False
    return True


def cuts() -> Iterator[tuple[str, int]]:
    """Return the moments at which a call's connection breaks, from before sending until after the answer."""
    for size in (0, 1, 40, 500, 2000, 2100, 5000):
        yield "up", size
    for size in (0, 1, 4, 5, 20, 60, 90, 5000):
        yield "down", size


async def test_a_cut_connection_leaves_no_false_word(wire: Proxy, admin: Connection) -> None:
    said: list[tuple[bool | None, bool]] = []
    for number, (way, size) in enumerate(cuts()):
        service = f"cut-{number}"
        wire.mend()
        pool = await create_pool(wire.uri, service=service, max_size=1)
        queue = Queue(pool)
        assert await verdict(queue, f"warm-{number}") is True
        wire.cut_after(way, size)
        answer = await verdict(queue, f"key-{number}")
        said.append((answer, await stored(admin, f"key-{number}", service)))
        wire.mend()
        assert await verdict(queue, f"key-{number}") is True, "it can be sent again"
        pool.terminate()
    assert all(answer is None or answer == there for answer, there in said), said
    assert {(None, True), (None, False), (True, True)} <= set(said), said
    once = "select count(*) from agent.event where item_key like 'key-%'"
    assert await admin.fetchval(once) == len(said), "sent again, each is stored once"


async def test_a_break_without_a_word_of_the_server_leaves_it_unknown_over_another_driver_too(
    wire: Proxy,
) -> None:
    async with await psycopg.AsyncConnection.connect(wire.uri, autocommit=True) as connection:
        wire.cut_after("down", 0)
        with pytest.raises(OutcomeUnknown):
            await Queue(connection).enqueue("cut")


async def test_a_session_that_an_administrator_ends_is_not_known_to_have_stored_nothing(
    server: Server, shared_database: str, admin: Connection
) -> None:
    pool = await create_pool(as_role(shared_database, "surelane_worker"), service="ended", max_size=1)
    try:
        async with connected(shared_database) as holder, holder.transaction():
            await holder.execute("select agent.enqueue('cut', _item_key => 'ended')")
            call = asyncio.create_task(verdict(Queue(pool), "ended"))
            locked = "exists (select from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock')"
            await becomes(admin, f"select {locked}", "ended")
            await server.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'ended'"
            )
            assert await call is None
    finally:
        await close_pool(pool)


async def test_in_the_callers_transaction_nothing_is_stored_without_its_commit(
    wire: Proxy, admin: Connection
) -> None:
    connection = await asyncpg.connect(wire.uri, server_settings={"application_name": "joined"})
    queue = Queue(connection)
    with contextlib.suppress(asyncpg.InterfaceError, asyncpg.PostgresError):
        async with connection.transaction():
            await queue.enqueue("cut", item_key="joined-warm")
            wire.cut_after("down", 0)
            with pytest.raises(DatabaseUnavailable) as caught:
                await queue.enqueue("cut", item_key="joined")
            assert not isinstance(caught.value, OutcomeUnknown)
    assert not await stored(admin, "joined", "joined")
    with pytest.raises(DatabaseUnavailable) as closed:
        await queue.enqueue("cut", item_key="joined")
    assert not isinstance(closed.value, OutcomeUnknown), "a closed connection sends nothing"


async def test_numbers_that_no_column_holds_and_a_database_that_is_away_are_told_apart(
    shared_database: str,
) -> None:
    pool = await create_pool(as_role(shared_database, "surelane_worker"), service="x", max_size=1)
    with pytest.raises(InvalidInput):
        await Queue(pool).enqueue("job", max_attempts=2**70)
    await close_pool(pool)
    pool = await create_pool(
        f"postgresql://surelane@127.0.0.1:{free_port()}/nowhere", service="x", max_size=1
    )
    with pytest.raises(DatabaseUnavailable) as away:
        await Queue(pool).enqueue("job")
    assert not isinstance(away.value, OutcomeUnknown)
    await close_pool(pool)


async def test_the_listener_raises_the_clients_errors(
    wire: Proxy, admin: Connection, shared_database: str
) -> None:
    nowhere = f"postgresql://surelane@127.0.0.1:{free_port()}/nowhere"
    wrong_role = as_role(shared_database, "surelane_worker").replace("surelane_worker", "unknown_role")
    for uri in (nowhere, wrong_role):
        with pytest.raises(DatabaseUnavailable):
            async with _listener(uri).connection():
                pass
    pooled = _listener(wire.uri, notifications=False)
    with pytest.raises(DatabaseUnavailable):
        async with pooled.bounded():  # the connection is cut at the commit
            wire.cut_after("up", 0)
    wire.mend()
    async with pooled.bounded() as connection:
        await Queue(connection).enqueue("cut", item_key="pooled")
    assert await stored(admin, "pooled", "listens")
    await pooled.close()


def _listener(uri: str, *, notifications: bool = True) -> Listener:
    return Listener(
        uri,
        service="listens",
        on_lost=lambda: None,
        on_open=lambda: None,
        introduce=_stranger,
        notifications=notifications,
        within=timedelta(seconds=5),
    )


async def _stranger(_: Connection) -> None:
    """Opens no session."""
