"""A group of several kinds runs in order, within the bound of each kind's handler."""

import json
from itertools import pairwise

from surelane.calls import Connection
from tests.system.worker import ended, enqueue, worker

GROUPS = 8
KINDS = ("step", "one-at-a-time", "step", "one-at-a-time", "together", "step")


async def test_a_group_of_several_kinds_runs_in_order_and_within_each_handlers_bound(
    database: str, connection: Connection
) -> None:
    """Some groups begin with the handler whose only slot is taken, and some events have no group."""
    async with connection.transaction():
        groups = [
            [
                await enqueue(connection, kind, {"n": number}, group_key=f"T:C:{number}")
                for kind in (KINDS if number % 2 else KINDS[1:])
            ]
            for number in range(GROUPS)
        ]
        alone = [await enqueue(connection, "one-at-a-time") for _ in range(4)]
    async with worker(database):
        ran = {
            identity: await ended(connection, identity, within=60)
            for identity in [*alone, *(identity for group in groups for identity in group)]
        }
    assert {row["outcome"] for row in ran.values()} == {"completed"}
    assert {row["attempts"] for row in ran.values()} == {1}
    for group in groups:
        spans = [
            (result["began"], result["ended"])
            for identity in group
            if isinstance(result := json.loads(ran[identity]["result"]), dict)
        ]
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans)), "in order"
    bounded = sorted(
        (result["began"], result["ended"])
        for row in ran.values()
        if row["kind"] == "one-at-a-time"
        for result in [json.loads(row["result"])]
    )
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(bounded)), "one at once"
