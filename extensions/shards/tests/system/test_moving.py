"""A workspace moves to another installation: nothing is lost or done twice, and each thread keeps its order."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.errors import Conflict, SurelaneError
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from surelane_operator.doctor import Level, verify
from surelane_shards.moving import BLOCK, hold, move
from surelane_shards.placing import place, read_workspaces
from tests.databases import Databases, Server
from tests.sql import queue_steps as do
from tests.sql.migrations import becomes, connected
from tests.sql.queue_steps import claim, complete, ending, envelope, fail, heads, insert, release
from tests.sql.queue_steps import pair as fence
from tests.system.test_cli import Command
from tests.system.worker import enqueue

TEAM = "T0MOVES"
FIRST = "select id from agent.event where item_key = 'Ev2'"
TABLES = ("event", "event_hist", "step", "signal", "rule", "cron", "model_usage", "installation", "data_key")


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


async def test_the_command_tells_what_moved_and_keeps_the_action_but_not_that_nothing_moved(
    uris: list[str], both: list[Connection]
) -> None:
    source, target = both
    payload = {"team_id": TEAM}
    moving = [await enqueue(source, "noted", payload), await enqueue(source, "noted", payload, run_in=3600)]
    stays = await enqueue(source, "noted", {"team_id": "T0STAYS"})
    command = "workspaces", "move", TEAM, "--to", uris[1]
    moved = await Command(uris[0])(*command)
    assert (moved.code, moved.out) == (0, "moved rows: 2 of event\n"), moved
    assert await source.fetchval("select array_agg(id) from agent.event") == [stays]
    assert await target.fetchval("select array_agg(id order by id) from agent.event") == moving
    again = await Command(uris[0])(*command)
    assert (again.code, again.out) == (0, "moved rows: none\n")
    (action,) = await source.fetch("select target, result from agent.operator_action")
    assert (action["target"], json.loads(action["result"])["event"]) == (f"workspace {TEAM}", 2)


async def test_what_runs_ends_before_it_and_what_waits_behind_it_moves(
    uris: list[str], both: list[Connection]
) -> None:
    source, target = both
    waits = asyncio.Event()
    given = {"payload": json.dumps({"team_id": TEAM}), "group_key": "a thread"}
    first = await do.enqueue(source, **given)
    (row,) = await claim(source)
    second = await do.enqueue(source, **given)
    async with connected(uris[0]) as other:
        moving = asyncio.create_task(move(other, target, TEAM, lambda _: waits.set()))
        waiting = asyncio.create_task(waits.wait())
        await asyncio.wait((moving, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert await target.fetchval("select count(*) from agent.event") == 0
        assert await complete(source, fence(row)) == ["done"]
        await moving
    assert await ending(target, first) == ("completed", None)
    assert await target.fetchval("select array_agg(id) from agent.event") == [second]


async def test_what_is_left_of_a_workspace_without_events_moves_too(both: list[Connection]) -> None:
    """Without what has just ended, an event that Slack sends again would run again in the target."""
    source, target = both
    ended = await insert(source, envelope("Ev1"))  # of T1
    await source.execute("select agent.delete_event($1)", ended)
    assert (await move(source, target, "T1", lambda _: None))["event_hist"] == 1
    assert await insert(target, envelope("Ev1")) == ended
    await source.execute(
        f"insert into agent.rule values (1, '{TEAM}', '{TEAM}', '\"in French\"', 'U1', now());"
        f"insert into agent.model_usage values (current_date, '{TEAM}', 'U1', 'small', 1, 2, 3, 0.5, 'r1')"
    )
    moved = await move(source, target, TEAM, lambda _: None)
    assert (moved["rule"], moved["model_usage"]) == (1, 1)


LAST, MANY = 24, 1000
_ENDED = "select not exists (select from pg_stat_activity where pid = $1)"


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
            await becomes(watching, _ENDED, pid)
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
        insert into agent.cron (name, kind, schedule, next_at) values
            ('chat:{TEAM}:U1:1', 'agent-turn', '0 9 * * 1', now() + interval '3 days'),
            ('chat:T0STAYS:{TEAM}:1', 'agent-turn', '0 9 * * 1', now() + interval '3 days');
        insert into agent.model_usage values (current_date, '{TEAM}', 'U1', 'small', 1, 2, 3, 0.5, 'r1');
        insert into agent.installation (enterprise_wide, owner_id, details, sealed)
        values (false, '{TEAM}', '{{}}', '\x010203'), (false, '{TEAM} docs', '{{}}', '\x010203');
        insert into agent.event (event_ts, event) values (now(), '{{"team_id": "T0STAYS"}}');
        """
    )


async def _dump(connection: Connection) -> dict[str, list[Any]]:
    """Return all rows of the workspace, without what the installation decides."""
    rows: dict[str, list[Any]] = {}
    for table in TABLES:
        found = await connection.fetch(
            "select (row - $1::text[] - case when (row ->> 'vt')::timestamptz <= now() then 'vt' else '' end)::text"
            f" as row from (select to_jsonb(e) as row from agent.{table} as e) as e order by 1",
            ["id"] if table == "signal" else ["head", "lane"],
        )
        rows[table] = [row["row"] for row in found if "T0STAYS" not in row["row"]]
    return rows


async def test_a_thread_keeps_its_order_also_behind_a_retry_and_what_came_there_meanwhile(
    both: list[Connection],
) -> None:
    here, there = both
    early, late = (
        envelope(key, channel="C1", ts=ts, thread_ts="1.1") for key, ts in (("Ev2", "1.1"), ("Ev3", "1.2"))
    )
    for queue, event, ago in ((here, early, 2), (there, late, 1)):
        await insert(queue, event.replace('"T1"', f'"{TEAM}"'))
        await queue.execute("update agent.event set event_ts = now() - make_interval(mins => $1)", ago)
    payload = {"team_id": TEAM}
    for key in ("a", "b"):
        await do.enqueue(here, "noted", payload=json.dumps(payload), group_key="g", item_key=key)
    rows = await claim(here, "noted")
    assert await fail(here, fence(rows[1]), retry_in=timedelta(hours=1)) == ["done"]
    assert await release(here, fence(rows[0])) == ["done"]
    await move(here, there, TEAM, print)
    (retry,) = await there.fetch("select item_key, retrying from agent.event where group_key = 'g' and head")
    assert tuple(retry) == ("b", True)
    assert [row["item_key"] for row in await claim(there, "slack.app_mention")] == ["Ev2", "Ev3"]
    assert await heads(there, f"{TEAM}:C1:1.1") == [await there.fetchval(FIRST)]


def _said(key: str, ts: str, text: str = "hi", **more: Any) -> str:
    """Return a mention in one thread of the workspace."""
    given = envelope(key, channel="C1", ts=ts, event_ts=ts, thread_ts="1700000000.1", text=text, **more)
    return given.replace('"T1"', f'"{TEAM}"')


async def _handled(queue: Connection) -> list[tuple[str, str]]:
    """Handle all that workers may claim. Return keys and kinds, in order."""
    handled = []
    while rows := await claim(queue, "slack.app_mention", "slack.message_changed", "noted", "trigger-fire"):
        handled += [(row["item_key"], row["kind"].removeprefix("slack.")) for row in rows]
        assert set(await complete(queue, *map(fence, rows))) == {"done"}
    return handled


MENTION, EARLY, MIDDLE, LATE = "app_mention", "1700000001.1", "1700000002.1", "1700000003.1"


async def _meanwhile(source: Connection, target: Connection) -> None:
    """Store what was there before a move, then what the target gets while it holds the workspace."""
    await insert(source, _said("Ev0", "1700000000.1"))
    assert await _handled(source) == [("Ev0", MENTION)]
    await insert(source, _said("Ev2", MIDDLE))
    await insert(source, _said("Ev1", EARLY))
    fired = "select id from agent.fire_trigger('git', 'w1', $1)"
    await source.fetchval(fired, json.dumps({"team_id": TEAM}))
    await hold(target, TEAM, print)
    edited = {"edited": {"user": "U1", "ts": "1700000009.1"}}
    for key, ts, text, more in (
        ("Ev3", LATE, "hi", {}),
        ("Ev1", EARLY, "hi", {}),  # again
        ("Ev0", "1700000000.1", "hi", {}),  # again, after its end
        ("Ev4", MIDDLE, "hi", {}),  # again, under another id
        ("Ev5", EARLY, "more", edited),
    ):
        await insert(target, _said(key, ts, text, **more))
    batch = [_said("Ev6", "1700000004.1"), _said("Ev3", LATE)]
    await target.fetch("select * from agent.insert_events($1)", batch)
    await target.fetchval(fired, json.dumps({"team_id": TEAM}))
    await enqueue(target, "noted", {"team_id": TEAM})
    assert await _handled(target) == [], "what came is held"
    why = "select array_agg(distinct (agent.why_waiting(id)).reason) from agent.event where head"
    assert await target.fetchval(why) == ["arriving"]
    assert [each for each in await verify(target) if each.level is Level.PROBLEM] == []
    await target.execute("update agent.arriving set since = since - interval '2 hours'")
    assert [each.check for each in await verify(target) if each.level is Level.PROBLEM] == ["arrivals"]
    stays = await enqueue(target, "noted", {"team_id": "T0STAYS"})
    assert [row["id"] for row in await claim(target, "noted")] == [stays], "others' events are not"


async def _all_once(queue: Connection) -> None:
    """Check that each was handled once, and those of the thread in order."""
    handled = await _handled(queue)
    thread = [key for key, kind in handled if kind == MENTION]
    assert thread == ["Ev1", "Ev2", "Ev3", "Ev6"]
    assert sorted(kind for _, kind in handled if kind != MENTION) == [
        "message_changed",
        "noted",
        "trigger-fire",
    ]
    assert not await queue.fetchval("select exists (select from agent.event where claimed_by is null)")


@pytest.mark.parametrize("after", [MANY, 12, 78, 82, 83, 85], ids=lambda after: f"after {after}")
async def test_what_comes_to_the_target_meanwhile_is_held_also_if_the_move_goes_back(
    uris: list[str], both: list[Connection], after: int
) -> None:
    here, there = both
    await _meanwhile(here, there)
    if await _sent(uris, after) == after:  # interrupted
        await hold(here, TEAM, print)
        await move(there, here, TEAM, print)
        here, there = there, here
    await _all_once(there)
    assert not await here.fetchval("select exists (select from agent.event where claimed_by is null)")
    for each in both:
        assert not await each.fetchval("select exists (select from agent.arriving)")
        again = await insert(each, _said("Ev7", "1700000005.1"))
        assert [row["id"] for row in await claim(each, "slack.app_mention")] == [again], (
            "it is held no longer"
        )


async def test_new_workspaces_go_where_the_fewest_are(uris: list[str], both: list[Connection]) -> None:
    columns = "insert into agent.installation (enterprise_wide, owner_id, details, sealed)"
    for team in ("T1", "T2", "T3", "T3 docs"):
        await both[0].execute(f"{columns} values (false, $1, '{{}}', '')", team)
    shards = dict(zip(("alpha", "beta"), uris, strict=True))
    has = await read_workspaces(shards)
    assert {name: sorted(teams) for name, teams in has.items()} == {"alpha": ["T1", "T2", "T3"], "beta": []}
    assert list(place(has, {"T1"})) == [("T2", "alpha", "beta"), ("T3", "alpha", "alpha")]
    given = " ".join(f"{name}={uri}" for name, uri in shards.items())
    placed = await Command("")("workspaces", "place", SURELANE_SHARDS=given)
    assert placed.out == "T1 alpha beta\nT2 alpha alpha\nT3 alpha alpha\n"


async def test_a_move_names_a_key_that_is_live_there(uris: list[str], both: list[Connection]) -> None:
    for queue in both:
        await do.enqueue(queue, "noted", payload=json.dumps({"team_id": TEAM}), item_key="same")
    async with connected(uris[0]) as here, connected(uris[1]) as there:
        with pytest.raises(Conflict, match="has the key same, which event"):
            await move(here, there, TEAM, print)
    await both[1].execute("select agent.cancel_event('same')")
    source, target = both
    assert (await move(source, target, TEAM, print))["event"] == 1


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
