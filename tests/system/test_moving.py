"""A workspace moves to another installation: nothing is lost or done twice, and each thread keeps its order."""

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain, count
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.encryption.keys import new_key
from surelane.errors import SurelaneError
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from surelane_operator.doctor import Level, verify
from surelane_operator.moving import BLOCK, move
from tests.databases import Databases, Server
from tests.processes import until
from tests.sql.migrations import connected
from tests.sql.queue_steps import claim, complete, fail, heads, release
from tests.sql.queue_steps import pair as fence
from tests.system.test_cli import Command, Done
from tests.system.worker import enqueue, result_of, suspended, worker

HANDLERS = {"SURELANE_HANDLERS": "tests.system.moving_handlers:handlers"}
TEAM = "T0MOVES"
TABLES = ("event", "event_hist", "step", "signal", "rule", "model_usage", "installation", "data_key")


@pytest.fixture
async def uris(server: Server, databases: Databases) -> AsyncIterator[list[str]]:
    """Make two installations whose events are numbered apart. Return their owners' URIs."""
    async with databases.lent() as first, databases.lent() as second:
        uris = [server.uri(first), server.uri(second)]
        async with connected(uris[1]) as connection:
            await connection.execute(f"select setval('agent.event_id_seq', {BLOCK})")
        yield uris


@pytest.fixture
async def both(uris: list[str]) -> AsyncIterator[list[Connection]]:
    async with connected(uris[0]) as here, connected(uris[1]) as there:
        yield [here, there]


async def started(uris: list[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).parent / "surelane"), "workspaces", "move", TEAM),
        *("--database", uris[0], "--to", uris[1]),
        stdout=asyncio.subprocess.DEVNULL,
    )


async def command(source: str, target: str) -> Done:
    return await Command(source)("workspaces", "move", TEAM, "--to", target)


async def test_a_suspended_run_goes_on_there_and_no_step_runs_again(
    uris: list[str], both: list[Connection], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    source, target = both
    payload = {"team_id": TEAM, "log": str(log)}
    settings = HANDLERS | {"SURELANE_ENCRYPTION_KEYS": new_key(), "SURELANE_ENCRYPT_EVENTS": "true"}
    async with worker(uris[0], **settings):
        identity = await enqueue(source, "approved", payload)
        other = await enqueue(source, "approved", payload | {"team_id": "T0STAYS"})
        later = await enqueue(source, "noted", payload | {"thread": "a", "number": 1}, run_in=3600)
        await suspended(source, identity)
        await suspended(source, other)
        moved = await command(*uris)
        assert (moved.code, "2 of event," in moved.out) == (0, True), moved
    assert await source.fetchval("select array_agg(id) from agent.event") == [other]
    assert await target.fetchval("select array_agg(id order by id) from agent.event") == [identity, later]
    async with worker(uris[1], **settings):
        await Queue(target).signal(str(identity), "answer", "yes")
        assert "surelane.sealed" in str(await result_of(target, identity)), "it has the workspace's data key"
    assert log.read_text().split() == ["first", "first", "second"], "one of them is the other workspace's"
    (action,) = await source.fetch("select target, result from agent.operator_action")
    assert action["target"] == f"workspace {TEAM}"
    assert json.loads(action["result"])["event"] == 2
    again = await command(*uris)
    assert (again.code, again.out) == (0, "moved rows: none\n")


LAST, MANY = 24, 1000
_LIVES = "select exists (select from pg_stat_activity where pid = $1)"


def _mortal(name: str) -> Any:
    call = getattr(asyncpg.Connection, name)

    async def answers_and_dies(self: "Mortal", *given: Any, **more: Any) -> Any:
        answer = await call(self, *given, **more)
        if self.left[0] == 0:
            for each in self.peers:
                each.terminate()
            raise ConnectionResetError
        self.left[0] -= 1
        return answer

    return answers_and_dies


class Mortal(asyncpg.Connection):
    """A connection that ends after a number of statements, as its process does. Their answers do not arrive."""

    left: list[int]
    peers: list["Mortal"]
    execute, fetch, fetchval = map(_mortal, ("execute", "fetch", "fetchval"))
    copy_to_table = _mortal("copy_to_table")


async def _sent(uris: list[str], most: int) -> int:
    """Move, and die after ``most`` statements. Return how many were sent."""
    left: list[int] = [-1]
    peers: list[Mortal] = []
    for uri in uris:
        connection = await asyncpg.connect(uri, connection_class=Mortal)
        connection.left, connection.peers = left, peers
        peers.append(connection)
    pids = [peer.get_server_pid() for peer in peers]
    left[0] = most
    with suppress(OSError, asyncpg.InterfaceError):
        await move(peers[0], peers[1], TEAM, lambda _: None)
    sent, left[0] = most - left[0], -1
    for peer, uri, pid in zip(peers, uris, pids, strict=True):
        peer.terminate()
        async with connected(uri) as watching:
            while await watching.fetchval(_LIVES, pid):  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.005)
    return sent


async def _fill(connection: Connection) -> None:
    """Store what a workspace may have: groups, retries, jobs for later, a parent, history, and what hangs on them."""
    queue = Queue(connection)
    await connection.execute("select agent.register_kinds(array['surelane.failed:brief', 'brief', 'noted'])")
    payload = {"team_id": TEAM}
    jobs = [
        Job("noted", payload | {"n": nth}, group_key=f"group {nth % 2}", item_key=f"noted {nth}")
        for nth in range(6)
    ]
    jobs += [
        Job("brief", payload | {"n": nth}, group_key="brief", item_key=f"brief {nth}") for nth in range(4)
    ]
    jobs.append(Job("later", payload, run_at=datetime.now(UTC) + timedelta(hours=1), dedupe_key="later"))
    stored = [each.id for each in await queue.enqueue_many(jobs)]
    first, second, third, fourth = await claim(connection, "brief")
    await complete(connection, fence(first))
    await fail(connection, fence(second), final=True, reason="error")
    await fail(connection, fence(third), retry_in=timedelta(hours=1))
    await release(connection, fence(fourth))
    await queue.fan_out([Job("child"), Job("child")], Continuation("parent", payload))
    (child,) = await claim(connection, "child", limit=1)
    await complete(connection, fence(child), results=['"done"'])
    await connection.execute(
        f"""
        insert into agent.step (event_id, name, nth, sort, event_ts, result, attempt, started_at)
        select id, 'a step', 1, 'step', event_ts, '1.50', 1, now() from agent.event;
        insert into agent.signal (event_id, name, value) select id, 'go', '1' from agent.event;
        insert into agent.data_key (id, workspace, sealed) values ('key', '{TEAM}', '\x010203');
        insert into agent.rule values ({stored[0]}, '{TEAM}', '{TEAM}', '"in French"', 'U1', now());
        insert into agent.model_usage values (current_date, '{TEAM}', 'U1', 'small', 1, 2, 3, 0.5, 'r1');
        insert into agent.installation (enterprise_wide, owner_id, details, sealed)
        values (false, '{TEAM}', '{{}}', '\x010203');
        insert into agent.event (event_ts, event) values (now(), '{{"team_id": "T0STAYS"}}');
        """
    )


async def _dump(connection: Connection) -> dict[str, list[Any]]:
    """Return all rows of the workspace, without what the installation decides."""
    rows: dict[str, list[Any]] = {}
    for table in TABLES:
        found = await connection.fetch(
            f"select (to_jsonb(e) - $1::text[])::text as row from agent.{table} as e order by 1",
            ["id"] if table == "signal" else ["head", "lane"],
        )
        rows[table] = [row["row"] for row in found if "T0STAYS" not in row["row"]]
    return rows


async def test_a_move_that_is_interrupted_after_any_statement_is_finished_by_the_next(
    uris: list[str], both: list[Connection]
) -> None:
    here, there = both
    await _fill(here)
    await there.execute("select agent.register_kinds(array['surelane.failed:brief'])")
    before = await _dump(here)
    assert all(before.values()), before
    sent = await _sent(uris, MANY)
    here, there = there, here
    uris.reverse()
    # All of the last ones, in which it leaves here and appears there; of those before, which only copy, a sample.
    for after in (*range(0, sent - LAST, 21), *range(sent - LAST, sent)):
        assert await _sent(uris, after) == after
        left = {row["id"] for row in await here.fetch("select id from agent.event where kind <> 'event'")}
        came = {row["id"] for row in await there.fetch("select id from agent.event where kind <> 'event'")}
        assert not left & came, "an event can be claimed in both"
        assert await _sent(uris, MANY) < MANY
        assert await _dump(there) == before
        assert not await here.fetchval("select count(*) from agent.event where kind <> 'event'")
        here, there = there, here
        uris.reverse()
    there = here
    assert await _dump(there) == before
    assert not await there.fetchval("select count(*) from pg_namespace where nspname like 'move%'")
    for group in ("group 0", "group 1", "brief"):
        ids = await there.fetchval(
            "select array_agg(id order by event_ts, id) from agent.event where group_key = $1", group
        )
        assert await heads(there, group) == ids[:1]
    assert [each for each in await verify(there) if each.level is Level.PROBLEM] == []


async def test_what_does_not_fit_is_refused_and_stays(uris: list[str], both: list[Connection]) -> None:
    source, target = both
    identity = await enqueue(source, "noted", {"team_id": TEAM})
    sealed = "insert into agent.installation (enterprise_wide, owner_id, details, sealed) values (false, $1, '{}', $2)"
    await source.execute(sealed, TEAM, b"\x01" + b"k" * 30)

    async def refused(to: Connection, reason: str) -> None:
        async with asyncio.timeout(60):
            async with connected(uris[0]) as mine:
                with pytest.raises(SurelaneError, match=reason):
                    await move(mine, to, TEAM, lambda _: None)
            await target.execute("select pg_advisory_unlock_all()")
        assert await source.fetchval("select array_agg(id) from agent.event") == [identity]
        assert await target.fetchval("select count(*) from agent.event") == 0

    await refused(source, "another move is under way, or both are one database")
    await target.execute('create schema "move_T0MOVES"')
    await target.execute("""comment on schema "move_T0MOVES" is '{"from": "elsewhere"}'""")
    await refused(target, "a move from elsewhere is unfinished")
    await target.execute('drop schema "move_T0MOVES"')
    await target.execute(sealed, "T0OTHER", b"\x01" + b"o" * 30)
    await refused(target, f"encrypted with the key {b'k'.hex() * 8}")
    await target.execute("select setval('agent.event_id_seq', 1, false)")
    await refused(target, f"event {identity} may be another one there")
    await target.execute("update agent.version set version = '9.0.0'")
    await refused(target, "the target's of 9.0.0")
    with pytest.raises(SurelaneError, match="letters and digits"):
        await move(source, target, "T0'", lambda _: None)


@pytest.mark.chaos
async def test_threads_under_traffic_keep_their_order_although_the_mover_is_killed(
    uris: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    pools = [await asyncpg.create_pool(uri, min_size=2, max_size=2) for uri in uris]
    queues = [Queue(pool) for pool in pools]
    routed: list[Queue] = queues[:1]
    """Where the map sends the workspace: nowhere while it moves."""
    stop = asyncio.Event()

    async def post() -> int:
        """Post events of five threads, each again and again until it is stored. Return how many."""
        for number in count():
            if stop.is_set():
                break
            payload = {"team_id": TEAM, "log": str(log), "thread": str(number % 5), "number": number}
            job = Job("noted", payload, group_key=f"thread {number % 5}", item_key=f"post {number}")
            while not routed:  # noqa: ASYNC110 - as Slack asks again and again
                await asyncio.sleep(0.02)
            await routed[0].enqueue_many([job])
            await asyncio.sleep(0.005)
        return number

    def lines() -> int:
        return len(log.read_text().splitlines())

    kills = (0.05, 0.3, 0.6, 1.0, None)
    async with worker(uris[0], **HANDLERS), worker(uris[1], **HANDLERS), asyncio.TaskGroup() as group:
        posting = group.create_task(post())
        for kill_after in kills:
            enough = lines() + 50
            await until(lambda enough=enough: lines() >= enough, within=120)  # type: ignore[misc]
            routed.clear()
            payload = {"team_id": TEAM, "log": str(log), "thread": "later", "number": 1}
            await queues[0].enqueue_many(
                [Job("noted", payload, run_at=datetime.now(UTC) + timedelta(seconds=9))]
            )
            if kill_after is not None:
                moving = await started(uris)
                await asyncio.sleep(kill_after)
                with suppress(ProcessLookupError):  # it was quicker
                    moving.kill()
                await moving.wait()
            moved = await command(*uris)
            assert moved.code == 0, moved
            uris.reverse()
            queues.reverse()
            routed.append(queues[0])
        stop.set()
        posted = await posting
        await until(lambda: lines() >= posted + len(kills), within=120, what=f"the end of {posted} events")
    for pool in pools:
        await pool.close()
    numbers = defaultdict(list)
    for line in log.read_text().splitlines():
        thread, number = line.split()
        numbers[thread].append(int(number))
    assert len(numbers.pop("later")) == len(kills)
    assert sorted(chain(*numbers.values())) == list(range(posted))
    assert all(each == sorted(each) for each in numbers.values())
