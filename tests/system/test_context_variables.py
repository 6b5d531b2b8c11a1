"""A handler's context variables and tracing context are its event's own."""

import json
from collections.abc import Sequence

import pytest

from surelane.calls import Connection
from tests.otlp import receiving
from tests.system.worker import ended, enqueue, worker

HANDLERS = "tests.system.context_handlers:handlers"
EVENTS = 30
NOTHING = [None, None]


async def found_by(
    connection: Connection, database: str, events: Sequence[int], **settings: str
) -> list[object]:
    """Return what each event's handler found, in a worker with one slot."""
    async with worker(database, SURELANE_HANDLERS=HANDLERS, SURELANE_CONCURRENCY="1", **settings):
        rows = [await ended(connection, identity) for identity in events]
    assert {row["outcome"] for row in rows} == {"completed"}
    return [json.loads(row["result"]) for row in rows]


@pytest.mark.parametrize(("kind", "group"), [("leave", None), ("leave", "T:C:1"), ("raise", None)])
async def test_no_event_finds_what_an_earlier_one_left(
    database: str, connection: Connection, kind: str, group: str | None
) -> None:
    async with connection.transaction():
        events = [
            await enqueue(connection, kind, {"number": number}, group_key=group) for number in range(EVENTS)
        ]
    assert await found_by(connection, database, events) == [NOTHING] * EVENTS


async def test_an_event_keeps_what_its_own_handler_left(database: str, connection: Connection) -> None:
    async with connection.transaction():
        events = [await enqueue(connection, "leave in parts", {"number": number}) for number in range(EVENTS)]
    assert await found_by(connection, database, events) == [[number, number] for number in range(EVENTS)]


async def test_nothing_is_left_where_events_are_traced(database: str, connection: Connection) -> None:
    async with connection.transaction():
        events = [await enqueue(connection, "leave", {"number": number}) for number in range(EVENTS)]
    async with receiving() as receiver:
        assert await found_by(connection, database, events, **receiver.env) == [NOTHING] * EVENTS
