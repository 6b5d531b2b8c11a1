"""The client's error about a failed call is true: stored, not stored, or unknown."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit, urlunsplit

import asyncpg
import pytest

from surelane import DatabaseUnavailable, InvalidInput, OutcomeUnknown, Queue, SurelaneError
from surelane.calls import Connection, Pool
from surelane_service.pool import Listener, close_pool, create_pool
from tests.databases import Server, as_role
from tests.processes import free_port


class Wire:
    """A TCP proxy that cuts its connections after a number of bytes in one direction."""

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        self._port = parts.port or 5432
        self._host = parts.hostname or parse_qs(parts.query)["host"][0]
        self._left: dict[str, int | None] = {"up": None, "down": None}
        self._writers: list[asyncio.StreamWriter] = []

    def cut_after(self, way: str, size: int) -> None:
        self._left = {"up": None, "down": None, way: size}

    def mend(self) -> None:
        self._left = {"up": None, "down": None}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._host.startswith("/"):
            upstream, to_server = await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        else:
            upstream, to_server = await asyncio.open_connection(self._host, self._port)
        self._writers += [writer, to_server]
        await asyncio.gather(
            self._carry("up", reader, to_server),
            self._carry("down", upstream, writer),
            return_exceptions=True,
        )

    async def _carry(self, way: str, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            left = self._left[way]
            if left is not None and len(data) > left:
                sink.write(data[:left])
                await sink.drain()
                break
            if left is not None:
                self._left[way] = left - len(data)
            sink.write(data)
        for writer in self._writers:
            writer.close()


@pytest.fixture
async def wire(shared_database: str) -> AsyncIterator[tuple[Wire, str]]:
    """Run a wire to the database; yield it and the URI through it."""
    parts = urlsplit(as_role(shared_database, "surelane_worker"))
    carried = Wire(urlunsplit(parts))
    server = await asyncio.start_server(carried.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    login = parts.netloc.rpartition("@")[0]
    yield carried, urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{port}", query=""))
    server.close()


@pytest.fixture
async def admin(shared_database: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(shared_database)
    yield connection
    await connection.close()


async def stored(admin: Connection, key: str, service: str) -> bool:
    """Return whether the event is stored, once no session of the service is busy."""
    busy = "select count(*) from pg_stat_activity where application_name = $1 and state <> 'idle'"
    while await admin.fetchval(busy, service):  # noqa: ASYNC110 - nothing to listen to
        await asyncio.sleep(0.01)
    return bool(await admin.fetchval("select exists (select from agent.event where item_key = $1)", key))


async def verdict(queue: Queue, key: str, group: str | None = None) -> bool | None:
    """Return the client's verdict on an enqueue: stored, not stored, or ``None`` for unknown."""
    try:
        await queue.enqueue("cut", {"text": "x" * 2000}, item_key=key, group_key=group)
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


async def test_a_cut_connection_leaves_no_false_word(wire: tuple[Wire, str], admin: Connection) -> None:
    carried, uri = wire
    said: list[tuple[bool | None, bool]] = []
    for number, (way, size) in enumerate(cuts()):
        service = f"cut-{number}"
        carried.mend()
        pool = await create_pool(uri, service=service, max_size=1)
        queue = Queue(pool)
        assert await verdict(queue, f"warm-{number}") is True
        carried.cut_after(way, size)
        answer = await verdict(queue, f"key-{number}")
        said.append((answer, await stored(admin, f"key-{number}", service)))
        carried.mend()
        assert await verdict(queue, f"key-{number}") is True, "it can be sent again"
        pool.terminate()
    assert all(answer is None or answer == there for answer, there in said), said
    assert {(None, True), (None, False), (True, True)} <= set(said), said
    once = "select count(*) from agent.event where item_key like 'key-%'"
    assert await admin.fetchval(once) == len(said), "sent again, each is stored once"


async def _blocked(admin: Connection, pool: Pool, key: str) -> "asyncio.Task[bool | None]":
    """Enqueue a job that waits for our transaction, which has inserted its key."""
    call = asyncio.create_task(verdict(Queue(pool), key))
    waiting = "select count(*) from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock'"
    while not await admin.fetchval(waiting, key):  # noqa: ASYNC110 - nothing to listen to
        await asyncio.sleep(0.01)
    return call


async def test_a_session_that_an_administrator_ends_is_not_known_to_have_stored_nothing(
    server: Server, shared_database: str, admin: Connection
) -> None:
    holder = await asyncpg.connect(shared_database)
    pool = await create_pool(as_role(shared_database, "surelane_worker"), service="ended", max_size=1)
    try:
        async with holder.transaction():
            await holder.execute("select agent.enqueue('cut', _item_key => 'ended')")
            call = await _blocked(admin, pool, "ended")
            await server.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'ended'"
            )
            assert await call is None
    finally:
        await holder.close()
        await close_pool(pool)


async def test_in_the_callers_transaction_nothing_is_stored_without_its_commit(
    wire: tuple[Wire, str], admin: Connection
) -> None:
    carried, uri = wire
    connection = await asyncpg.connect(uri, server_settings={"application_name": "joined"})
    queue = Queue(connection)
    with contextlib.suppress(asyncpg.InterfaceError, asyncpg.PostgresError):
        async with connection.transaction():
            await queue.enqueue("cut", item_key="joined-warm")
            carried.cut_after("down", 0)
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
    wire: tuple[Wire, str], admin: Connection, shared_database: str
) -> None:
    nowhere = f"postgresql://surelane@127.0.0.1:{free_port()}/nowhere"
    wrong_role = as_role(shared_database, "surelane_worker").replace("surelane_worker", "unknown_role")
    for uri in (nowhere, wrong_role):
        with pytest.raises(DatabaseUnavailable):
            async with _listener(uri).connection():
                pass
    carried, uri = wire
    pooled = _listener(uri, notifications=False)
    with pytest.raises(DatabaseUnavailable):
        async with pooled.bounded():  # the connection is cut at the commit
            carried.cut_after("up", 0)
    carried.mend()
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
