"""One message is one event, under all ids that Slack or a program brings it. An edit or a deletion ends what waits."""

import json
from datetime import timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from surelane_agents.calls import AgentCalls
from surelane_service.engine import Engine
from tests.sql import queue_steps as do
from tests.sql.conftest import Connect
from tests.sql.queue_steps import locked

TS = "1700000000.000100"
MENTION = {"channel": "C1", "ts": TS, "event_ts": TS}
DIRECT = {**MENTION, "type": "message", "channel_type": "im", "channel": "D1"}
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mention": (MENTION, MENTION),
    "in a thread": ({**MENTION, "thread_ts": "1600000000.000100"}, {**MENTION, "thread_ts": "1600000000.000100"}),
    "direct": (DIRECT, DIRECT),
    "mention in a direct message": (DIRECT, {**DIRECT, "type": "app_mention", "channel_type": None}),
    "group": ({**DIRECT, "channel_type": "mpim", "channel": "G1"}, {**DIRECT, "channel_type": "mpim", "channel": "G1"}),
    "another event_ts": (MENTION, {**MENTION, "event_ts": "1700000900.000100"}),
    "no event_ts": (MENTION, {**MENTION, "event_ts": None}),
    "read later": (MENTION, {**MENTION, "thread_ts": TS, "reply_count": 2, "reactions": []}),
    "broadcast": ({**MENTION, "type": "message", "thread_ts": "1.1"},
                  {**MENTION, "type": "message", "thread_ts": "1.1", "subtype": "thread_broadcast"}),
}  # fmt: skip
STATES = ("waiting", "held", "tried", "ended")
EDITED = {"edited": {"user": "U1", "ts": "1700000005.000000"}, "event_ts": "1700000005.000200"}


async def store(queue: Connection, *events: str, key: str | None = None) -> list[tuple[int, bool]]:
    """Insert events as ingest does: each in a batch of its own."""
    statement = "select id, duplicate from agent.insert_events(array[$1]::jsonb[], null, array[$2])"
    return [tuple((await queue.fetch(statement, event, key))[0]) for event in events]


async def bring(queue: Connection, identity: int, state: str) -> None:
    """Let an event be held by a worker, have failed once, or be completed."""
    if state == "waiting":
        return
    kinds = [row["kind"] for row in await queue.fetch("select distinct kind from agent.event")]
    held = [do.pair(row) for row in await do.claim(queue, *kinds) if row["id"] == identity]
    if state == "tried":
        assert await do.fail(queue, *held) == ["done"]
    elif state == "ended":
        assert await do.complete(queue, *held) == ["done"]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("form", FORMS)
async def test_a_message_under_another_id_is_a_duplicate(queue: Connection, form: str, state: str) -> None:
    first, again = FORMS[form]
    ((identity, duplicate),) = await store(queue, do.envelope("Ev1", **first))
    assert not duplicate
    # Another message of the group is before it, so that it is a member.
    await bring(queue, identity, state)
    known = [(identity, True)]
    assert await store(queue, do.envelope("Ev2", **again)) == known
    assert await store(queue, do.envelope("Ev2", **again), key="Ev2") == known, "as ingest of 0.4.0 names it"
    assert await do.insert(queue, do.envelope("Ev3", **again)) == identity
    ((other, duplicate),) = await store(queue, do.envelope("Ev4", **{**again, "ts": "1700000000.000200"}))
    assert (other > identity, duplicate) == (True, False), "another message"


@pytest.mark.parametrize("state", STATES)
async def test_of_a_batch_and_behind_another_each_message_is_stored_once(
    queue: Connection, state: str
) -> None:
    before = do.envelope("Ev0", **{**DIRECT, "ts": "1.1"})
    twins = [before, *(do.envelope(f"Ev{n}", **DIRECT) for n in (1, 2, 3))]
    stored = await queue.fetch("select id, duplicate from agent.insert_events($1) order by ordinal", twins)
    identity = stored[1]["id"]
    assert [tuple(row) for row in stored[1:]] == [(identity, False), (identity, True), (identity, True)]
    await bring(queue, identity, state)
    assert await store(queue, do.envelope("Ev4", **DIRECT)) == [(identity, True)]


@pytest.mark.parametrize("key", [None, "message:T1:C1:" + TS, "mention:C1:" + TS], ids=str)
@pytest.mark.parametrize("state", STATES)
async def test_an_edited_mention_is_an_edit_of_the_first(
    queue: Connection, state: str, key: str | None
) -> None:
    ((identity, _),) = await store(queue, do.envelope("Ev1", **MENTION), key=key)
    await bring(queue, identity, state)
    same, new = (do.envelope(f"Ev{text}", **{**MENTION, **EDITED, "text": text}) for text in ("hi", "hello"))
    assert await store(queue, same, key=key) == [(identity, True)], "nothing new is said"
    ((edit, duplicate),) = await store(queue, new, key=key)
    row = await do.event_of(queue, edit)
    assert (duplicate, row["kind"], row["item_key"], row["group_key"]) == (
        False, "slack.message_changed", "Evhello", None)  # fmt: skip
    assert await store(queue, new, key=key) == [(edit, True)], "Slack's retry"
    assert (await store(queue, do.envelope("Ev3", **MENTION), key=key))[0] == (identity, True)


async def test_a_mention_that_an_edit_added_is_new_and_its_retries_are_duplicates(queue: Connection) -> None:
    added = do.envelope("Ev1", **{**MENTION, **EDITED})
    ((identity, duplicate),) = await store(queue, added)
    row = await do.event_of(queue, identity)
    assert (duplicate, row["kind"], row["group_key"]) == (False, "slack.app_mention", f"T1:C1:{TS}")
    assert await store(queue, added, do.envelope("Ev2", **MENTION)) == [(identity, True)] * 2
    await bring(queue, identity, "ended")
    assert await store(queue, added, do.envelope("Ev2", **{**MENTION, **EDITED})) == [(identity, True)] * 2


STEP = "thread"


def reported(*, at: str = "1700000000.000100", team: str = "T1", **inner: Any) -> dict[str, Any]:
    """Return Slack's reported around a mention, reported at a time."""
    event = {"type": "app_mention", "channel": "C1", "user": "U1", "ts": "1700000000.000100", "text": "hello"}
    shared = {"is_ext_shared_channel": True} if inner.pop("shared", False) else {}
    named = {"type": "event_callback", "team_id": team, "event_id": f"Ev{at}{team}", **shared}
    return {**named, "event": {**event, "event_ts": at, **inner}}


async def store_one(queue: Connection, payload: dict[str, Any]) -> int:
    identity: int = await queue.fetchval("select agent.insert_event($1::text::jsonb)", json.dumps(payload))
    return identity


async def replace(queue: Connection, payload: dict[str, Any], *, restart: bool = True) -> str | None:
    return await AgentCalls(Engine(queue)).replace_message(
        payload, "edit", STEP, restart=restart, by="U1", reason="edited"
    )


async def texts(queue: Connection) -> list[tuple[int, str]]:
    rows = await queue.fetch("select id, event->'event'->>'text' as text from agent.event order by id")
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("shared", [False, True], ids=["one workspace", "Slack Connect"])
async def test_a_waiting_message_is_replaced_once_by_any_reporter(queue: Connection, shared: bool) -> None:
    first = await store_one(queue, reported(shared=shared))
    edit = reported(at="1700000009.000100", team="T2" if shared else "T1", text="bye", shared=shared)
    assert await replace(queue, edit) == "cancelled"
    ((second, text),) = await texts(queue)
    assert (second > first, text) == (True, "bye")
    assert await replace(queue, edit) is None  # the answer was lost
    assert await texts(queue) == [(second, "bye")]


async def test_what_has_begun_goes_on_and_an_earlier_edit_replaces_nothing(queue: Connection) -> None:
    identity = await store_one(queue, reported())
    (event,) = await Engine(queue).claim_events(["slack.app_mention"], 1, worker="w")
    edit = reported(at="1700000009.000100", text="bye")
    assert await replace(queue, edit) == "busy", "it may become a turn yet"
    await Engine(queue).store_step(identity, event.claim, STEP, 1, None, "[]", "[]", timedelta(0), final=True)
    assert await replace(queue, edit) == "running"
    assert await texts(queue) == [(identity, "hello"), (identity + 1, "bye")]
    assert await replace(queue, edit) is None  # it is cancelled already
    await queue.execute("delete from agent.event")
    kept = await store_one(queue, reported(at="1700000005.000100"))
    assert await replace(queue, reported(at="1700000004.000100", text="earlier")) is None
    assert await replace(queue, reported(at="1700000009.000100", ts="1700000000.000200")) is None
    other = reported(at="1700000009.000100", type="message", channel_type="channel")
    assert await replace(queue, other) is None
    assert await texts(queue) == [(kept, "hello")]


async def test_a_claim_that_began_nothing_hides_no_message_from_its_edit(queue: Connection) -> None:
    identity, edit = await store_one(queue, reported()), reported(at="1700000009.000100", text="bye")
    engine = Engine(queue)
    (event,) = await engine.claim_events(["slack.app_mention"], 1, worker="w")
    assert await do.fail(queue, (identity, event.claim)) == ["done"]
    assert await replace(queue, edit) == "busy", "its worker may have died before its turn began"
    (event,) = await engine.claim_events(["slack.app_mention"], 1, worker="w")
    assert await do.release(queue, (identity, event.claim)) == ["done"]
    assert await replace(queue, edit) == "busy", "its worker may never have heard of its claim"
    await queue.execute("update agent.event set vt = agent.clock() + interval '2 minutes'")
    assert await replace(queue, edit) is None, "it waits for long"
    await queue.execute("update agent.event set vt = agent.clock()")
    (event,) = await engine.claim_events(["slack.app_mention"], 1, worker="w")
    await engine.store_step(identity, event.claim, "other", 1, None, "[]", "[]", timedelta(0), final=True)
    assert await do.release(queue, (identity, event.claim)) == ["done"]
    assert await replace(queue, edit) is None, "another handler than an agent's has begun it"


async def test_a_locked_message_is_busy_and_a_deleted_one_ends(queue: Connection, connect: Connect) -> None:
    identity = await store_one(queue, reported())
    async with locked(await connect(), identity):
        assert await replace(queue, reported(at="1700000009.000100", text="bye")) == "busy"
    assert await texts(queue) == [(identity, "hello")]
    assert await replace(queue, reported(at="1700000009.000100"), restart=False) == "cancelled"
    assert await texts(queue) == []
