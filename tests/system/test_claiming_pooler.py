"""A worker that only polls works behind a real transaction pooler."""

import re

import pytest

from surelane.calls import Connection
from surelane.errors import DatabaseUnavailable
from surelane_operator.doctor import examine_at
from surelane_operator.doctor.server import connected
from surelane_service.common.connecting import TRACKED
from tests.databases import Server, as_role
from tests.system.pooler import pooled
from tests.system.worker import ended, enqueue, worker


async def test_workers_behind_a_transaction_pooler_lose_nothing(
    database: str, connection: Connection
) -> None:
    settings = {"SURELANE_NOTIFICATIONS": "off", "SURELANE_POLL_INTERVAL": "200ms"}
    async with (
        pooled(as_role(database, "surelane_worker")) as through,
        worker(through, DATABASE_URL=through, **settings) as first,
        worker(through, DATABASE_URL=through, **settings) as second,
    ):
        identities = []
        for number in range(300):
            identities.append(await enqueue(connection, "short", group_key=f"T:C:{number % 30}"))
            identities.append(await enqueue(connection, "echo", {"number": number}))
        retried = await enqueue(connection, "raise-once")
        rows = [await ended(connection, identity, within=30) for identity in [*identities, retried]]
        output = [*first.output, *second.output]
    assert {row["outcome"] for row in rows} == {"completed"}
    assert [row["attempts"] for row in rows] == [1] * 600 + [2]
    assert not any("unavailable" in line or "refused" in line for line in output)


async def test_a_pooler_keeps_what_it_can_and_sessions_of_a_wrong_isolation_are_refused_with_the_cure(
    database: str, server: Server
) -> None:
    name = database.partition("?")[0].rpartition("/")[2]
    cut = f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
    async with pooled(as_role(database, "surelane_operator")) as through:
        await server.execute(f"alter database {name} set default_transaction_isolation = 'serializable'")
        await server.execute(f"alter database {name} set timezone = 'Europe/Berlin'")
        await server.execute(cut)
        with pytest.raises(
            DatabaseUnavailable, match="default_transaction_isolation is 'serializable'"
        ) as refused:
            await examine_at(through)
        cure = re.search(r"alter role .* set default_transaction_isolation = '[^']*'", str(refused.value))
        assert cure
        await server.execute(cure[0].replace(" set ", f" in database {name} set "))
        await server.execute(cut)
        async with connected(through) as session:
            found = {each: await session.fetchval("select current_setting($1)", each) for each in TRACKED}
        assert found == TRACKED
