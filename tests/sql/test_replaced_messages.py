"""What becomes of the live events of a message that a person edits or deletes."""

import json
from datetime import timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from surelane_service.engine import Engine
from tests.sql.conftest import Connect
from tests.sql.queue_steps import locked

STEP = "thread"


def envelope(*, at: str = "1700000000.000100", team: str = "T1", **inner: Any) -> dict[str, Any]:
    """Return Slack's envelope around a mention, reported at a time."""
    event = {"type": "app_mention", "channel": "C1", "user": "U1", "ts": "1700000000.000100", "text": "hello"}
    shared = {"is_ext_shared_channel": True} if inner.pop("shared", False) else {}
    named = {"type": "event_callback", "team_id": team, "event_id": f"Ev{at}{team}", **shared}
    return {**named, "event": {**event, "event_ts": at, **inner}}


async def store(queue: Connection, payload: dict[str, Any]) -> int:
    identity: int = await queue.fetchval("select agent.insert_event($1::text::jsonb)", json.dumps(payload))
    return identity


async def replace(queue: Connection, payload: dict[str, Any], *, restart: bool = True) -> str | None:
    return await Engine(queue).replace_message(
        payload, "edit", STEP, restart=restart, by="U1", reason="edited"
    )


async def live(queue: Connection) -> list[tuple[int, str]]:
    rows = await queue.fetch("select id, event->'event'->>'text' as text from agent.event order by id")
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("shared", [False, True], ids=["one workspace", "Slack Connect"])
async def test_a_waiting_message_is_replaced_once_by_any_reporter(queue: Connection, shared: bool) -> None:
    first = await store(queue, envelope(shared=shared))
    edit = envelope(at="1700000009.000100", team="T2" if shared else "T1", text="bye", shared=shared)
    assert await replace(queue, edit) == "cancelled"
    ((second, text),) = await live(queue)
    assert (second > first, text) == (True, "bye")
    assert await replace(queue, edit) is None  # the answer was lost
    assert await live(queue) == [(second, "bye")]


async def test_what_has_begun_goes_on_and_an_earlier_edit_replaces_nothing(queue: Connection) -> None:
    identity = await store(queue, envelope())
    (event,) = await Engine(queue).claim_events(["slack.app_mention"], 1, worker="w")
    edit = envelope(at="1700000009.000100", text="bye")
    assert await replace(queue, edit) == "busy", "it may become a turn yet"
    await Engine(queue).store_step(identity, event.claim, STEP, 1, None, "[]", "[]", timedelta(0), final=True)
    assert await replace(queue, edit) == "running"
    assert await live(queue) == [(identity, "hello"), (identity + 1, "bye")]
    assert await replace(queue, edit) is None  # it is cancelled already
    await queue.execute("delete from agent.event")
    kept = await store(queue, envelope(at="1700000005.000100"))
    assert await replace(queue, envelope(at="1700000004.000100", text="earlier")) is None
    assert await replace(queue, envelope(at="1700000009.000100", ts="1700000000.000200")) is None
    other = envelope(at="1700000009.000100", type="message", channel_type="channel")
    assert await replace(queue, other) is None
    assert await live(queue) == [(kept, "hello")]


async def test_a_locked_message_is_busy_and_a_deleted_one_ends(queue: Connection, connect: Connect) -> None:
    identity = await store(queue, envelope())
    async with locked(await connect(), identity):
        assert await replace(queue, envelope(at="1700000009.000100", text="bye")) == "busy"
    assert await live(queue) == [(identity, "hello")]
    assert await replace(queue, envelope(at="1700000009.000100"), restart=False) == "cancelled"
    assert await live(queue) == []
