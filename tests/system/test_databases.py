"""Tests get databases in the state after the migrations, owned by a role that is no superuser."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import asyncpg
import pytest

from tests.databases import Databases, Server
from tests.sql.migrations import connected, state
from tests.sql.queue_steps import claim, complete, enqueue, pair


@pytest.fixture
async def lender(server: Server, template: str) -> AsyncIterator[Databases]:
    async with aclosing(Databases(server, template)) as lending:
        yield lending


async def test_a_database_is_lent_again_as_the_migrations_left_it(lender: Databases, server: Server) -> None:
    async with lender.lent() as name:
        before = await state(server.uri(name))
        session = await asyncpg.connect(server.uri(name))
        first = await enqueue(session)
        await complete(session, *map(pair, await claim(session)))
        await session.execute("select agent.measure_queue(), pg_advisory_lock(1)")
        assert await state(server.uri(name)) != before
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await session.execute("select 1")
    async with lender.lent() as again:
        assert again == name
        assert await state(server.uri(name)) == before
        async with connected(server.uri(name)) as owner:
            assert await enqueue(owner) == first


@pytest.mark.parametrize(
    "change",
    [
        "alter function agent.settle rename to other",
        "alter table agent.event add column more text",
        "alter table agent.event disable trigger all",
        "revoke execute on all functions in schema agent from agent_worker",
        "update agent.version set min_compatible = '0.0.1'",
        "alter database {name} set default_transaction_read_only = on",
    ],
)
async def test_a_changed_database_is_dropped(lender: Databases, server: Server, change: str) -> None:
    async with lender.lent() as name, connected(server.uri(name)) as owner:
        await owner.execute("set role surelane")
        await owner.execute(change.format(name=name))
    async with lender.lent() as another:
        assert another != name
