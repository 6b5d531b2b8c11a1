"""Two workers' connections are cut while jobs run: each job ends once, in its group's order, soon after the fault.

SQL cannot kill a worker's process. It can end the worker's connections, by which the fleet also sees a death.
"""

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

import pytest

from surelane.calls import Connection
from surelane.jobs import Job
from surelane.queue import Queue
from surelane_operator.doctor import Level, verify
from tests.databases import Server
from tests.sql.migrations import becomes
from tests.system.worker import worker

KIND = "analytics-write"
"""A built-in kind, which keeps its payload as its result and does nothing else."""
BATCHES, GROUPS, EVERY = 60, 5, 0.05
"""A scene stores so many batches, each with an event of so many groups, so many seconds apart."""
HOLDERS = """select w.name, array_agg(a.pid) as pids from agent.worker as w
join pg_locks as l on l.locktype = 'advisory' and l.classid = agent.session_class()::oid and l.objid = w.session::oid
join pg_stat_activity as a on a.pid = l.pid and a.datname = current_database()
where w.died_at is null group by w.name order by w.name"""
ENDED = """select id, group_key, enqueued_at, finished_at from agent.job
where id = any($1) and finished_at is not null order by id"""
END_ONE = "select pg_terminate_backend(pid) from unnest('{%s}'::int4[]) as pid"
END_ALL = """select pg_terminate_backend(pid) from pg_stat_activity
where usename = 'surelane_worker' and datname = '%d'"""
SCENES = {"a worker's session ends": (END_ONE, 10), "all workers' connections end": (END_ALL, 20)}
"""Faults amid traffic: the statement that causes one, and the promised seconds until what it met has ended."""


@pytest.mark.timeout(400)
async def test_a_fleet_keeps_its_promises_while_its_connections_are_cut(
    server: Server, database: str, connection: Connection
) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(
                worker(database, SURELANE_HANDLERS="surelane_worker.builtin:handlers")
            )
        for scene, (fault, within) in SCENES.items():
            stored, at = await played(connection, server, fault)
            ended = f"(select count(distinct id) from ({ENDED.replace('$1', f'array{stored}')}) as e)"
            await becomes(connection, f"select {ended} = {len(stored)}")
            judge(scene, within, at, await connection.fetch(ENDED, stored))
        newest = await connection.fetchval("select min(session) from agent.worker")
        assert newest > 2, "a worker did not have to open another session"
    found = await verify(connection)
    assert [each for each in found if each.level is Level.PROBLEM] == []
    assert {"group heads", "claims", "timeline"} <= {each.check for each in found}


async def played(connection: Connection, server: Server, fault: str) -> tuple[list[int], datetime]:
    """Store events, with the fault halfway; return their ids and its time."""
    stored, at = list[int](), None
    for nth in range(BATCHES):
        if nth == BATCHES // 2:
            await becomes(connection, f"select count(*) = 2 from ({HOLDERS}) as holders")
            pids = (await connection.fetch(HOLDERS))[0]["pids"]
            at = await connection.fetchval("select agent.clock()")
            name = await connection.fetchval("select current_database()")
            await server.execute(fault.replace("%s", ",".join(map(str, pids))).replace("%d", name))
        jobs = [Job(KIND, {"rehearsal": nth}, group_key=f"{fault[:20]} {group}") for group in range(GROUPS)]
        stored += [answer.id for answer in await Queue(connection).enqueue_many(jobs)]
        await asyncio.sleep(EVERY)
    assert at is not None
    return stored, at


def judge(scene: str, within: float, at: datetime, rows: list[Any]) -> None:
    """Compare with the promises. Time counts from the fault, where that came between an event and its end."""
    groups, took = defaultdict(list), [0.0]
    for row in rows:
        groups[row["group_key"]].append(row["finished_at"])
        since = at if row["enqueued_at"] < at < row["finished_at"] else row["enqueued_at"]
        took.append((row["finished_at"] - since).total_seconds())
    assert len(rows) == len({row["id"] for row in rows}), f"{scene}: an event ended twice"
    assert all(each == sorted(each) for each in groups.values()), f"{scene}: a group ended out of order"
    assert max(took) <= within, scene
