"""What models used is counted once a response, by day, and goes with retention and erasing."""

import json
from datetime import timedelta
from typing import Any

from surelane.calls import Connection
from tests.sql.queue_steps import advance
from tests.sql.test_erase import erase, traces

COUNT = "select agent.count_usage($1, $2, 'm', 100, 10, 0.5, $3)"


async def used(queue: Connection, workspace: str, person: str) -> tuple[Any, ...]:
    """Return tokens and cost of today: the workspace's, and the person's."""
    (row,) = await queue.fetch("select * from agent.read_usage($1, $2)", workspace, person)
    return tuple(row)


async def rows(queue: Connection) -> list[str]:
    found = await queue.fetch("select owner_id || ' ' || user_id from agent.model_usage order by 1")
    return [row[0] for row in found]


async def test_response_is_counted_once_for_its_person_and_workspace(queue: Connection) -> None:
    for person, response in (("U1", "a"), ("U1", "a"), ("U1", "b"), ("U2", "c"), ("", "d")):
        await queue.execute(COUNT, "T1", person, response)
    await queue.execute(COUNT, "T2", "U1", "e")
    assert await used(queue, "T1", "U1") == (440, 2, 220, 1)
    assert await used(queue, "T3", "U1") == (0, 0, 0, 0)


async def retain(queue: Connection) -> None:
    """Drop what is older than three days, step by step: a chunk that earlier tests left is a step of its own."""
    while await queue.fetchval("select next from agent.drop_history('3 days')") is not None:
        pass


async def test_next_day_begins_at_nothing_and_retention_drops_old_days(queue: Connection) -> None:
    await queue.execute(COUNT, "T1", "U1", "a")
    await advance(queue, timedelta(days=1))
    assert await used(queue, "T1", "U1") == (0, 0, 0, 0)
    await retain(queue)
    assert await rows(queue) == ["T1 U1"]
    await advance(queue, timedelta(days=4))
    await retain(queue)
    assert await rows(queue) == []


async def test_erasing_a_person_takes_the_persons_rows_alone(queue: Connection) -> None:
    for workspace, person in (("T1", "U1"), ("T1", "U2"), ("T2", "U1")):
        await queue.execute(COUNT, workspace, person, "a")
    counts = await erase(queue, team="T1", user="U1")
    assert counts["model_usage"] == 1, json.dumps(counts)
    assert await rows(queue) == ["T1 U2", "T2 U1"]
    await erase(queue, user="U1")
    assert await traces(queue, "U1") == []
    await erase(queue, team="T1")
    assert await rows(queue) == []
