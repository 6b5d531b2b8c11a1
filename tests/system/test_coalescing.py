"""Quick messages of one thread are handed to one run, and none of them is lost or handled twice."""

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.changes import Changes
from surelane_operator.reads.timeline import story_of
from tests.processes import Service, until
from tests.system.shared import shared_connection, shared_slack
from tests.system.slack_stand import Stand
from tests.system.worker import ended, enqueue, live, worker

HANDLERS = "tests.system.coalescing_handlers:handlers"
served = pytest.mark.usefixtures("running")
connection, slack = shared_connection, shared_slack


@pytest.fixture(scope="module")
async def running(shared_database: str, slack: Stand) -> AsyncIterator[Service]:
    settings = {"SURELANE_HANDLERS": HANDLERS, "SLACK_BOT_TOKEN": "xoxb-any", "SURELANE_CONCURRENCY": "4"}
    async with worker(shared_database, SLACK_API_URL=slack.api, **settings) as started:
        yield started


async def grow_quiet(connection: Connection, *identities: int) -> None:
    """Let an hour pass for events, and look at them now."""
    await connection.execute(
        "update agent.event set enqueued_at = enqueued_at - interval '1 hour', event_ts = event_ts - interval '1 hour'"
        " where id = any($1)",
        identities,
    )
    await connection.execute(
        "update agent.event set vt = agent.clock() where id = any($1) and claimed_by is null", identities
    )
    await connection.execute("notify agent_event")


async def say(
    connection: Connection, group: str, *texts: str, kind: str = "talk", quiet: bool = True, **first: Any
) -> list[int]:
    """Store messages of one thread at once, an hour ago if they are ``quiet``; return their ids."""
    async with connection.transaction():
        identities = [
            await enqueue(
                connection,
                kind,
                {"text": text} | (first if number == 0 else {}),
                group_key=group,
            )
            for number, text in enumerate(texts)
        ]
        if quiet:
            await grow_quiet(connection, *identities)
    return identities


async def put_back(connection: Connection, identity: int) -> None:
    """Wait until an event has been put back."""
    while (await connection.fetchval("select reason from agent.why_waiting($1)", identity)) != "debounced":
        pass


async def said(log: Path, what: str) -> None:
    """Wait until a handler has noted something."""
    await until(lambda: log.exists() and what in log.read_text().splitlines(), what=what)


async def ends(connection: Connection, *identities: int) -> list[Any]:
    """Wait until events have ended; return each one's result, or the id of the event whose run it followed."""
    found = []
    for identity in identities:
        row = await ended(connection, identity)
        assert row["outcome"] == "completed", row
        into = (row["reason"] or "").removeprefix("coalesced into ")
        found.append(int(into) if into else json.loads(row["result"] or "null"))
    return found


@served
async def test_run_waits_until_no_more_come_and_gets_them_in_order(connection: Connection) -> None:
    (first,) = await say(connection, "burst", "a", quiet=False)
    await put_back(connection, first)
    row = await live(connection, first)
    assert (row["claimed_by"], row["attempts"], row["head"]) == (None, 0, True)
    more = await say(connection, "burst", "b", "c", quiet=False)
    assert await connection.fetchval("select reason from agent.why_waiting($1)", more[0]) == "group_waits"
    await grow_quiet(connection, first, *more)
    assert await ends(connection, first, *more) == [["a", "b", "c"], first, first]
    row = await ended(connection, first)
    assert (row["attempts"], len(row["claimed"])) == (1, 2)


@served
async def test_run_begins_by_itself(connection: Connection) -> None:
    first, second = await say(connection, "quick", "a", "b", kind="quick", quiet=False)
    assert await ends(connection, first, second) == [["a", "b"], first]


@served
async def test_event_without_a_group_is_handled_at_once(connection: Connection) -> None:
    identity = await enqueue(connection, "talk", {"text": "alone"})
    assert await ends(connection, identity) == [["alone"]]


@served
async def test_new_run_gets_the_same_events(connection: Connection) -> None:
    first, second = await say(connection, "replayed", "a", "b")
    await ends(connection, first, second)
    for step in (None, "read"):
        new = await Changes(connection).rerun_as_new(first, from_step=step)
        assert new.id is not None
        await put_back(connection, new.id)
        await grow_quiet(connection, new.id)
        assert await ends(connection, new.id) == [["a", "b"]]
    assert [row["reason"] for row in [await ended(connection, second)]] == [f"coalesced into {first}"]


@served
async def test_every_attempt_gets_the_same_events(connection: Connection, tmp_path: Path) -> None:
    """Their steps, which were stored for them, fit. The third event comes before the second attempt."""
    log = tmp_path / "log"
    first, second = await say(connection, "again", "a", "b", do="fail once", log=str(log))
    await said(log, "began")
    third, *_ = await say(connection, "again", "c")
    log.with_suffix(".go").touch()
    assert await ends(connection, first, second, third) == [["a", "b"], first, ["c"]]
    assert [(await ended(connection, each))["attempts"] for each in (first, second)] == [2, 1]


@served
async def test_followers_of_a_run_that_failed_for_good_are_handled_anew(connection: Connection) -> None:
    first, *others = await say(connection, "poison", "a", "b", "c", do="fail")
    assert (await ended(connection, first))["reason"] == "no more"
    assert await ends(connection, *others) == [["b", "c"], others[0]]


@served
async def test_run_that_was_suspended_gets_its_events_again(connection: Connection) -> None:
    first, *others = await say(connection, "sleepy", "a", "b", do="sleep")
    assert await ends(connection, first, *others) == [["a", "b"], first]


@served
async def test_followers_end_with_a_fan_out(connection: Connection) -> None:
    first, second = await say(connection, "fan", "a", "b", do="fan out")
    assert await ends(connection, first, second) == [None, first]


@served
async def test_other_kinds_of_the_thread_keep_their_turn(connection: Connection, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    async with connection.transaction():
        identities = [
            await enqueue(connection, kind, {"text": text, "log": log}, group_key="mixed")
            for kind, text in [("talk", "a"), ("talk", "b"), ("plain", "p"), ("talk", "c"), ("talk", "d")]
        ]
        await grow_quiet(connection, *identities)
    first, _, _, third, _ = identities
    assert await ends(connection, *identities) == [["a", "b"], first, "p", ["c", "d"], third]


@served
async def test_run_that_can_get_no_more_begins_at_once(connection: Connection) -> None:
    async with connection.transaction():
        first = await enqueue(connection, "talk", {"text": "a"}, group_key="closed")
        second = await enqueue(connection, "plain", {"text": "p"}, group_key="closed")
    assert await ends(connection, first, second) == [["a"], "p"]


@served
async def test_one_run_is_one_use_of_a_limit(connection: Connection) -> None:
    first, *others = await say(connection, "limited", "a", "b", "c", kind="limited")
    assert await ends(connection, first, *others) == [["a", "b", "c"], first, first]


@served
async def test_follower_is_cancelled_alone_and_a_head_with_its_run(
    connection: Connection, tmp_path: Path
) -> None:
    log, queue = tmp_path / "log", Queue(connection)
    first, second, third = await say(connection, "stop", "a", "b", "c", do="hang", log=str(log))
    await said(log, "began")
    assert await queue.cancel(str(second)) == "running"
    assert (await ended(connection, second))["outcome"] == "cancelled"
    assert (await live(connection, first))["claimed_by"]
    await queue.cancel(str(first))
    assert (await ended(connection, first))["outcome"] == "cancelled"
    assert await ends(connection, third) == [["c"]]
    assert log.read_text().split() == ["began", "ended"]


@served
async def test_followers_are_handled_anew_if_an_operator_ended_the_head(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    first, *others = await say(connection, "taken", "a", "b", "c", do="wait", log=str(log))
    await said(log, "began")
    await connection.execute("select agent.delete_event($1)", first)
    log.with_suffix(".go").touch()
    assert await ends(connection, first, *others) == [None, ["b", "c"], others[0]]


@served
async def test_follower_that_history_refuses_is_handled_anew(connection: Connection) -> None:
    async with connection.transaction():
        first, second, third = await say(connection, "refused", "a", "b", "c")
        await connection.execute(
            f"alter table agent.event_hist add constraint refused check (id <> {second} or reason is null) not valid"
        )
    try:
        assert await ends(connection, first, second, third) == [["a", "b", "c"], ["b", "c"], second]
    finally:
        await connection.execute("alter table agent.event_hist drop constraint refused")


@served
async def test_replies_are_those_of_the_run_and_answer_the_last_message(
    connection: Connection, slack: Stand
) -> None:
    async with connection.transaction():
        first, asked = await slack.mention("one")
        second, _ = await slack.mention("two", thread_ts=asked.ts)
        await grow_quiet(connection, first, second)
    told = {identity: await ended(connection, identity) for identity in (first, second)}
    assert told[second]["reason"] == f"coalesced into {told[first]['item_key']}"
    texts = ["one + two", "and once more"]
    assert [text for text in slack.answers(asked) if text in texts] == texts
    job = await Changes(connection).get(first)
    assert job is not None
    assert ("coalesced", f"with {second}") in [(step.what, step.detail) for step in story_of(job)]


async def test_nothing_is_lost_or_handled_twice_though_the_worker_is_killed(
    database: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    connection = await asyncpg.connect(database)
    settings = {"SURELANE_HANDLERS": HANDLERS, "SURELANE_WORKER_NAME": "mortal"}
    first, *others = await say(connection, "killed", "a", "b", "c", do="die", log=str(log))
    async with worker(database, ready="", **settings) as running:
        await running.child.wait()
        assert running.child.exit_code == -signal.SIGKILL, running.output
    (late,) = await say(connection, "killed", "late")
    async with worker(database, ready="", **settings):
        assert await ends(connection, first, *others, late) == [["a", "b", "c"], first, first, ["late"]]
    attempts = [(await ended(connection, each))["attempts"] for each in (first, *others, late)]
    assert attempts == [2, 1, 1, 1]
    assert log.read_text().splitlines() == ["a b c", "died in run", "a b c"]
    await connection.close()
