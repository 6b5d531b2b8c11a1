"""Inserts derive the kind, key, time and group of envelopes and bare events."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from tests.sql.queue_steps import claim_single, complete, enqueue, envelope, event_of, insert

SLACKS_EXAMPLE = datetime(2023, 11, 14, 22, 13, 20, 100, tzinfo=UTC)


async def test_events_are_stored_whole_with_slacks_own_time_and_commands_a_hash(queue: Connection) -> None:
    row = await event_of(queue, await insert(queue, envelope("Ev1")))
    assert json.loads(row["event"]) == json.loads(envelope("Ev1"))
    assert (row["kind"], row["item_key"], row["event_ts"]) == ("slack.app_mention", "Ev1", SLACKS_EXAMPLE)
    assert (row["attempts"], row["claimed"], row["claimed_by"], row["head"]) == (0, [], None, True)
    assert timedelta(minutes=-1) < row["visible_in"] <= timedelta(0)
    event = (
        '{"type": "app_mention", "event_ts": "1700000000.000100", "channel": "C1", "ts": "1700000000.000100"}'
    )
    row = await event_of(queue, await insert(queue, event))
    assert (row["kind"], row["event_ts"], row["group_key"]) == (
        "slack.app_mention",
        SLACKS_EXAMPLE,
        "C1:1700000000.000100",
    )
    assert row["item_key"].startswith("sha256:")
    assert await insert(queue, event) == row["id"]
    ahead = await queue.fetchval("select agent.from_timestamptz(agent.clock() + interval '23 hours')::text")
    row = await event_of(queue, await insert(queue, envelope("Ev2", event_ts=ahead)))
    assert await queue.fetchval("select agent.from_timestamptz($1)::text", row["event_ts"]) == ahead
    command = '{"command": "/deploy", "trigger_id": "13345224609.738474920.8088930838d88f008e0"}'
    row = await event_of(queue, await insert(queue, command))
    assert row["item_key"].startswith("trigger:")
    assert "13345224609" not in row["item_key"]
    assert await insert(queue, command) == row["id"]


ABSURD: tuple[Any, ...] = (
    *(None, "", "soon", "1e9", "-1", "0", "1.2.3", "NaN", "infinity"),
    *("99999999999", "1000000000", "9" * 400, {}, []),
)


@pytest.mark.parametrize("given", ABSURD)
async def test_an_absurd_time_is_replaced_by_the_envelopes(queue: Connection, given: Any) -> None:
    event = json.loads(envelope("Ev1", event_ts=given)) | {"event_time": 1700000000}
    row = await event_of(queue, await insert(queue, json.dumps(event)))
    assert row["event_ts"] == SLACKS_EXAMPLE.replace(microsecond=0)
    assert json.loads(row["event"]) == event


@pytest.mark.parametrize("event_time", [None, "later", 5, 10**12, True])
async def test_without_any_time_an_event_happens_now(queue: Connection, event_time: Any) -> None:
    event = json.loads(envelope("Ev1", event_ts=None)) | {"event_time": event_time}
    now = await queue.fetchval("select agent.clock()")
    row = await event_of(queue, await insert(queue, json.dumps(event)))
    assert timedelta(0) <= row["event_ts"] - now < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "message", "channel_type": "im"}, "slack.message.im"),
        ({"type": "message", "channel_type": "mpim"}, "slack.message.mpim"),
        ({"type": "message", "channel_type": "channel"}, "slack.message.channels"),
        ({"type": "message", "channel_type": "group"}, "slack.message.groups"),
        ({"type": "message", "channel_type": "app_home", "channel": "D1"}, "slack.message.im"),
        ({"type": "message", "channel": "D1"}, "slack.message.im"),
        ({"type": "message", "channel": "G1"}, "slack.message.groups"),
        ({"type": "message", "channel": "C1"}, "slack.message.channels"),
        ({"type": "message", "channel": "C1", "channel_type": "of tomorrow"}, "slack.message"),
        ({"type": "message"}, "slack.message"),
        ({"type": "reaction_added"}, "slack.reaction_added"),
        ({"type": "block_actions"}, "slack.block_actions"),
        ({"command": "/deploy", "text": "now"}, "slack.command.deploy"),
        ({"type": "", "what": "ever"}, "event"),
        ({}, "event"),
        ({"type": "x" * 300}, "slack." + "x" * 194),
    ],
)
async def test_events_are_called_as_by_slack(queue: Connection, event: dict[str, Any], kind: str) -> None:
    row = await event_of(queue, await insert(queue, json.dumps(event)))
    assert row["kind"] == kind
    assert await queue.fetchval("select array_agg(kind) from agent.kind") == [kind]


@pytest.mark.parametrize(
    ("inner", "group_key"),
    [
        ({"channel": "C1", "ts": "1.1"}, "T1:C1:1.1"),
        ({"channel": "C1", "ts": "1.2", "thread_ts": "1.1"}, "T1:C1:1.1"),
        ({"channel": "D1", "ts": "1.1", "channel_type": "im"}, "T1:D1"),
        ({"channel": "D1", "ts": "1.2", "thread_ts": "1.1", "channel_type": "im"}, "T1:D1:1.1"),
        ({"type": "reaction_added", "item": {"channel": "C1", "ts": "1.1"}}, "T1:C1:1.1"),
        ({"type": "channel_rename", "channel": {"id": "C1"}}, "T1:C1"),
        (
            {"type": "block_actions", "channel": {"id": "C1"}, "message": {"ts": "1.2", "thread_ts": "1.1"}},
            None,
        ),
        ({"type": "app_home_opened", "channel": ""}, None),
        ({"type": "team_join"}, None),
        ({"channel": "C" * 300, "ts": "1.1"}, "sha256:"),
    ],
)
async def test_events_go_to_threads(queue: Connection, inner: dict[str, Any], group_key: str | None) -> None:
    row = await event_of(queue, await insert(queue, envelope("Ev1", **inner)))
    assert row["head"]
    assert row["group_key"] == group_key or row["group_key"].startswith("sha256:")


async def test_what_postgresql_cannot_hold_and_infinity_are_refused(queue: Connection) -> None:
    with pytest.raises(asyncpg.DataError):
        await insert(queue, '{"type": "app_mention", "text": "\\u0000"}')
    with pytest.raises(asyncpg.CheckViolationError):
        await queue.execute("insert into agent.event (event_ts, event) values ('infinity', '{}')")


async def test_a_batch_answers_each_in_its_place(queue: Connection) -> None:
    known = await insert(queue, envelope("Ev3"))
    rows = await queue.fetch(
        "select * from agent.insert_events($1, $2, $3) order by ordinal",
        [envelope("Ev9"), envelope("Ev3"), envelope("Ev1"), envelope("Ev9")],
        ["00-a", None, "00-c", "00-d"],
        [None, None, "trigger:1", None],
    )
    first, found, keyed, again = rows
    assert [row["ordinal"] for row in rows] == [1, 2, 3, 4]
    assert [row["duplicate"] for row in rows] == [False, True, False, True]
    assert (found["id"], again["id"]) == (known, first["id"])
    stored = await event_of(queue, first["id"])
    assert stored["traceparent"] == "00-a"
    other = await event_of(queue, keyed["id"])
    assert (other["item_key"], other["traceparent"]) == ("trigger:1", "00-c")
    assert await queue.fetch("select * from agent.insert_events('{}')") == []


PLAIN = "insert into agent.event (event_ts, event) values (now(), $1) returning id"


async def test_a_plain_insert_makes_a_sound_row_before_what_is_scheduled(queue: Connection) -> None:
    identity = await queue.fetchval(PLAIN, envelope("Ev1", channel="C1", ts="1.1"))
    row = await event_of(queue, identity)
    assert (row["kind"], row["item_key"], row["group_key"], row["head"]) == (
        "slack.app_mention",
        "Ev1",
        "T1:C1:1.1",
        True,
    )
    member = await queue.fetchval(PLAIN, envelope("Ev2", channel="C1", ts="1.2", thread_ts="1.1"))
    for expected in (identity, member):
        claimed = await claim_single(queue)
        assert claimed["id"] == expected
        assert await complete(queue, (claimed["id"], len(claimed["claimed"]))) == ["done"]
    later = await queue.fetchval("select agent.clock() + interval '1 day'")
    await enqueue(queue, group_key="T1:C1:1.1", run_at=later)
    identity = await queue.fetchval(PLAIN, envelope("Ev3", channel="C1", ts="1.1"))
    claimed = await claim_single(queue)
    assert claimed["id"] == identity


async def test_inserting_wakes_listeners_once_a_transaction(queue: Connection, other: Connection) -> None:
    heard: list[str] = []
    await other.add_listener("agent_event", lambda *message: heard.append(message[-1]))
    async with queue.transaction():
        for number in range(5):
            await insert(queue, envelope(f"Ev{number}"))
    await other.fetchval("select 1")
    await other.fetchval("select 1")
    assert heard == [""]
