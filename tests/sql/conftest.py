"""Give the queue's tests one migrated database, emptied before each, and a clock that they set."""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, suppress

import asyncpg
import pytest

from surelane.calls import DRIVER_ERRORS, Connection
from tests.databases import Server, as_role

TABLES = (
    *("event", "kind_limit", "limit_state", "limit_note", "event_hist", "event_hist_outlier", "kind"),
    *("band", "request", "worker", "cron", "slack_limit", "step", "signal", "installation"),
    *("data_key", "used_id", "install_wait", "other_report", "uninstall", "operator_action"),
    *("erasure", "retention", "model_usage", "rule", "feedback", "dropped", "socket"),
)
EMPTY = "".join(f"delete from agent.{table};" for table in TABLES)
CLOCK = """
create table agent.test_clock (shift interval not null);
insert into agent.test_clock values ('0');
create or replace function agent.clock() returns timestamptz language sql volatile parallel safe
return clock_timestamp() + (select shift from agent.test_clock);
"""
NOTED = """
create function public.parked_is_noted() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _e agent.event;
    _key text;
    _state agent.limit_state;
begin
    select * into _e from agent.event where id = new.id and lane < 0 and head and claimed_by is null and isfinite(vt);
    _key := _e.changes #>> '{0,limit_key}';
    select * into _state from agent.limit_state where kind = _e.kind and limit_key = _key order by at desc limit 1;
    if _e.id is not null and _state.blocked_at is null and not exists (
        select from agent.limit_note
        where kind = _e.kind and limit_key = _key and due_at <= greatest(_e.vt, agent.clock()))
    then
        raise exception 'no note finds the parked event % (agent.note_parked)', _e.id;
    end if;
    return null;
end
$$;
create constraint trigger parked_is_noted after update on agent.event deferrable initially deferred
for each row when (new.lane < 0 and new.head and (new.claimed_by is null or new.vt < old.vt))
execute function public.parked_is_noted();
"""
"""Fails a transaction that moves a parked event and notes it for no claim: a function forgot ``agent.note_parked``."""

Connect = Callable[..., Awaitable[Connection]]

MOST_KEPT = 4
"""Connections of a role that are kept for the next test."""


@pytest.fixture(scope="session")
async def queue_database(server: Server, template: str) -> AsyncIterator[str]:
    """Return the URI of the database that the queue's tests share, as its owner."""
    async with server.fresh(template) as name:
        owner = await asyncpg.connect(server.uri(name))
        await owner.execute(CLOCK + NOTED)
        await server.execute(f"alter database {name} set tests.shared = on")
        await owner.close()
        yield server.uri(name)


class Kept:
    """Connections that tests use in turn: a new one must read the catalogue and every function that it calls."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._idle: dict[str | None, list[Connection]] = defaultdict(list)

    async def lend(self, role: str | None) -> Connection:
        """Return a connection in the state of a new one."""
        idle = self._idle[role]
        while idle:
            connection = idle.pop()
            if not connection.is_closed():
                return connection
        return await asyncpg.connect(self._uri if role is None else as_role(self._uri, role))

    async def take_back(self, role: str | None, connection: Connection) -> None:
        """Keep a connection, in the state of a new one. Close it if it broke, or is busy, or there are enough."""
        idle = self._idle[role]
        if len(idle) < MOST_KEPT and not connection.is_closed() and not connection.is_in_transaction():
            with suppress(*DRIVER_ERRORS, TimeoutError):
                await connection.execute("reset role; discard temp; discard sequences", timeout=60)
                await connection.reset(timeout=60)
                idle.append(connection)
                return
        await connection.close(timeout=60)

    async def aclose(self) -> None:
        """Close all."""
        for idle in self._idle.values():
            for connection in idle:
                await connection.close(timeout=60)


@pytest.fixture(scope="session")
async def kept_connections(queue_database: str) -> AsyncIterator[Kept]:
    """Keep the connections of the queue's tests."""
    async with aclosing(Kept(queue_database)) as connections:
        yield connections


@pytest.fixture
async def connect(kept_connections: Kept) -> AsyncIterator[Connect]:
    """Open further connections to the queue, as its owner or another role. Close them after the test."""
    async with AsyncExitStack() as stack:

        async def opened(role: str | None = None) -> Connection:
            connection = await kept_connections.lend(role)
            stack.push_async_callback(kept_connections.take_back, role, connection)
            return connection

        yield opened


@pytest.fixture
async def queue(connect: Connect) -> Connection:
    """Connect to the empty queue as its owner, with its clock set to now."""
    connection = await connect()
    await connection.execute(f"{EMPTY} update agent.test_clock set shift = '0'")
    return connection


@pytest.fixture
async def own_queue(server: Server, template: str) -> AsyncIterator[Connection]:
    """Connect to a database of the test's own: what it reads is counted, and other tests leave dead rows."""
    async with server.fresh(template) as name:
        connection = await asyncpg.connect(server.uri(name))
        await connection.execute(CLOCK)
        yield connection
        await connection.close()


@pytest.fixture
async def other(connect: Connect) -> Connection:
    """Connect to the queue a second time."""
    return await connect()


@pytest.fixture
async def service(queue: Connection, connect: Connect) -> Connection:
    """Connect to the empty queue as a worker."""
    assert not queue.is_closed()
    return await connect("surelane_worker")


@pytest.fixture
async def patient(queue: Connection) -> AsyncIterator[None]:
    """Let batches wait for locks as long as a test may need on a busy machine."""
    change = "alter function agent.insert_events(jsonb[], text[], text[]) set lock_timeout = '{}'"
    await queue.execute(change.format("60s"))
    yield
    await queue.execute(change.format("500ms"))
