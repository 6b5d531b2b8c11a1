"""``surelane rehearse``: cut connections of a staging fleet while it works, and check what was promised.

SQL cannot kill a worker's process. It can end the worker's connections, by which the fleet also sees a death.
"""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from surelane.calls import Connection, Row
from surelane.errors import InvalidInput
from surelane.jobs import Job
from surelane.queue import Queue
from surelane_operator.changes import Changes
from surelane_operator.doctor import Finding, Level
from surelane_operator.doctor.finding import ok, span

KIND = "analytics-write"
"""A built-in kind, which keeps its payload as its result and does nothing else."""
BATCHES, GROUPS, EVERY = 60, 5, 0.05
"""A scene stores so many batches, each with an event of so many groups, so many seconds apart."""
PATIENCE = 60.0
"""Seconds to wait until all of them have ended."""
_HOLDERS = """select w.name, array_agg(a.pid) as pids, array_agg(a.usesysid) as logins
, bool_and(pg_has_role(a.usesysid, 'usage') or pg_has_role('pg_signal_backend', 'usage')) as may
from agent.worker as w
join pg_locks as l on l.locktype = 'advisory' and l.classid = 1937077859 and l.objid = w.session::oid
join pg_stat_activity as a on a.pid = l.pid and a.datname = current_database()
where $1 = any(w.kinds) and w.died_at is null group by w.name order by w.name"""
"""The connections that hold the sessions (agent.session_class) of a kind's workers; whether this login may end them."""
_ENDED = """select id, group_key, enqueued_at, finished_at, attempts from agent.job
where id = any($1) and finished_at is not null order by id"""

_END_ONE = "select pg_terminate_backend(pid), $2::oid[] from unnest($1::int4[]) as pid"
_END_ALL = """select pg_terminate_backend(pid), $1::int4[] from pg_stat_activity
where usesysid = any($2) and datname = current_database() and pid <> pg_backend_pid()"""
SCENES = {
    "no fault": ("select $1::int4[], $2::oid[]", 10),
    "a worker's session ends": (_END_ONE, 10),
    "all workers' connections end": (_END_ALL, 20),
}
"""Faults amid traffic: the statement that causes one, and the promised seconds until what it met has ended."""


async def rehearse(changes: Changes, connection: Connection, name: str, kind: str = KIND) -> list[Finding]:
    """Play all scenes with jobs of ``kind``, in the database of that ``name`` alone; say which promises were kept.

    In another database, without two workers of the kind, or without the right to end their connections, InvalidInput is
    raised, and nothing was stored.
    """
    here = await connection.fetchval("select current_database()")
    if here != name:
        raise InvalidInput(f"this is the database {here}, not {name}: nothing was done")
    await _holders(connection, kind)
    async with changes.audit.keeping("rehearse", f"kind {kind}"):
        pass
    found: list[Finding] = []
    for scene, (fault, within) in SCENES.items():
        stored, at = await _played(connection, fault, kind)
        found += judged(scene, within, stored, at, await _ended(connection, stored))
    return found


async def _holders(connection: Connection, kind: str, patience: float = 0.0) -> list[Row]:
    """Return the workers with sessions. A worker that was cut needs some seconds to open another one."""
    ends = asyncio.get_running_loop().time() + patience
    while len(holders := await connection.fetch(_HOLDERS, kind)) < 2:
        if asyncio.get_running_loop().time() >= ends:
            wrong = f"{len(holders)} workers with sessions handle {kind}: start two, or name another --kind"
            raise InvalidInput(wrong)
        await asyncio.sleep(EVERY)
    if not all(holder["may"] for holder in holders):
        raise InvalidInput("this login may not end the workers' connections: grant pg_signal_backend to it")
    return holders


async def _played(connection: Connection, fault: str, kind: str) -> tuple[list[int], datetime]:
    """Store events, with the fault halfway; return their ids and its time."""
    run, stored, at = f"rehearsal {secrets.token_hex(4)}", list[int](), datetime.max.replace(tzinfo=UTC)
    for nth in range(BATCHES):
        if nth == BATCHES // 2:
            holders = await _holders(connection, kind, PATIENCE)
            at = await connection.fetchval("select agent.clock()")
            logins = [login for holder in holders for login in holder["logins"]]
            await connection.execute(fault, holders[0]["pids"], logins)
        jobs = [Job(kind, {"rehearsal": nth}, group_key=f"{run} {group}") for group in range(GROUPS)]
        stored += [answer.id for answer in await Queue(connection).enqueue_many(jobs)]
        await asyncio.sleep(EVERY)
    return stored, at


async def _ended(connection: Connection, stored: Sequence[int]) -> list[Row]:
    """Wait until all events have ended, for :data:`PATIENCE` at most."""
    ends, rows = asyncio.get_running_loop().time() + PATIENCE, list[Row]()
    while len({row["id"] for row in rows}) < len(stored) and asyncio.get_running_loop().time() < ends:
        await asyncio.sleep(EVERY)
        rows = await connection.fetch(_ENDED, stored)
    return rows


def judged(scene: str, within: float, stored: list[int], at: datetime, rows: list[Any]) -> list[Finding]:
    """Say which promises were kept: all ended, each once, in the order of its group, soon enough after the fault."""
    ended = {row["id"] for row in rows}
    groups = defaultdict(list)
    took = [0.0]
    for row in rows:
        groups[row["group_key"]].append(row["finished_at"])
        since = at if row["enqueued_at"] < at < row["finished_at"] else row["enqueued_at"]
        took.append((row["finished_at"] - since).total_seconds())
    again = sum(row["attempts"] > 1 for row in rows)
    times = f"half within {span(median(took))}, all within {span(max(took))}; {again} in another attempt"
    kept = {
        f"{len(ended)} of {len(stored)} events ended": len(ended) == len(stored),
        f"{len(rows) - len(ended)} ended twice": len(rows) == len(ended),
        f"{len(groups)} groups ended in their order": all(each == sorted(each) for each in groups.values()),
        f"{times} (promised: {within:g} s)": max(took) <= within,
    }
    advice = "see surelane events list, the workers' logs, and docs/reliability.md for the conditions"
    return [
        ok(scene, found) if holds else Finding(scene, Level.PROBLEM, found, advice)
        for found, holds in kept.items()
    ]
