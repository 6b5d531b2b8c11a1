"""The end of a failed or expired event stores the job of its failure hook, in the same transaction, once."""

import json
from collections.abc import Sequence

import pytest

from surelane.calls import Connection
from surelane_service.engine import Engine
from tests.sql.queue_steps import TEN_MINUTES, advance, claim, complete, enqueue, fail, live, pair, sweep

HOOK = "surelane.failed:job"


@pytest.fixture
async def hooked(queue: Connection) -> Connection:
    """A queue whose workers have a failure hook for one kind."""
    await Engine(queue).announce_worker("w1", ["job", "other", HOOK], "1.0.0")
    return queue


async def hooks(queue: Connection) -> Sequence[dict[str, object]]:
    rows = await queue.fetch("select event from agent.event where kind = $1 order by id", HOOK)
    return [json.loads(row["event"]) for row in rows]


async def test_the_last_failure_or_a_sweep_without_workers_stores_the_hooks_job(hooked: Connection) -> None:
    first = await enqueue(hooked, "job", payload='{"n": 1}', item_key="k")
    await fail(hooked, pair((await claim(hooked))[0]), errors=['{"type": "A"}'])
    assert await hooks(hooked) == []
    (row,) = await claim(hooked)
    async with hooked.transaction():
        await fail(hooked, pair(row), errors=['{"type": "B"}'], final=True, reason="no_luck")
        assert await live(hooked, first) is None
        assert len(await hooks(hooked)) == 1
    failure = {"id": first, "key": "k", "outcome": "failed", "reason": "no_luck"}
    errors = [{"type": "A"}, {"type": "B"}]
    assert await hooks(hooked) == [{"n": 1, "failure": {**failure, "errors": errors}}]
    await hooked.execute("delete from agent.event")
    await enqueue(hooked, "job")
    await Engine(hooked).retire_worker("w1")
    await hooked.execute("update agent.event set deadline = '2020-01-01'")
    await advance(hooked, TEN_MINUTES)
    await sweep(hooked)
    (job,) = await hooks(hooked)
    assert isinstance(job["failure"], dict)
    assert job["failure"]["outcome"] == "expired"


async def test_no_other_end_and_neither_another_kind_nor_a_hook_calls_a_hook(hooked: Connection) -> None:
    done, stopped, _ = [await enqueue(hooked, kind) for kind in ("job", "job", "other")]
    rows = {row["id"]: pair(row) for row in await claim(hooked, "job", "other")}
    await hooked.execute("select * from agent.cancel_jobs(array[$1::int8])", stopped)
    await complete(hooked, rows.pop(done))
    for each in rows.values():
        await fail(hooked, each, final=True)
    assert await hooked.fetchval("select count(*) from agent.event") == 0
    await enqueue(hooked, "job")
    await fail(hooked, pair((await claim(hooked))[0]), final=True)
    await fail(hooked, pair((await claim(hooked, HOOK))[0]), final=True)
    assert await hooked.fetchval("select count(*) from agent.event") == 0
