"""A worker that only polls works behind a real transaction pooler."""

from surelane.calls import Connection
from tests.databases import as_role
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
