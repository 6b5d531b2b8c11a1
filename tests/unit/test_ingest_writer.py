"""What Slack may send again, and what it may not."""

import asyncio
import json
from unittest.mock import AsyncMock, MagicMock

import pytest
from aiohttp import WSMsgType

from surelane.errors import Conflict, Forbidden, InvalidInput, SchemaMissing, TransientConflict
from surelane_ingest.app import RequestRefused
from surelane_ingest.envelope import Subscriptions
from surelane_ingest.socket_mode import Link
from surelane_ingest.writer import Lane, NotStored, Pending, _reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InvalidInput("no text", "22P05"), NotStored.UNSTORABLE),
        (Conflict("locked", "55P03"), NotStored.BLOCKED),
        (TransientConflict(), None),
        (Forbidden(), NotStored.REFUSED),
        (SchemaMissing(), NotStored.REFUSED),
        (OSError(), NotStored.REFUSED),
    ],
    ids=repr,
)
def test_only_an_event_that_cannot_be_held_is_refused_for_good(
    error: Exception, reason: NotStored | None
) -> None:
    assert _reason(error) is reason


@pytest.mark.parametrize(("status", "acknowledged"), [(503, False), (404, False), (400, True)])
async def test_an_envelope_that_may_be_stored_later_waits(status: int, acknowledged: bool) -> None:
    shared, socket = MagicMock(subscriptions=Subscriptions(frozenset())), AsyncMock()
    shared.drain.is_set.return_value = False
    shared.taker.take = AsyncMock(side_effect=RequestRefused(status, "not stored"))
    event = {"type": "event_callback", "event_id": "Ev1", "event": {"type": "app_mention"}}
    frame = json.dumps({"type": "events_api", "envelope_id": "1", "payload": event})
    socket.__aiter__.return_value = [MagicMock(type=WSMsgType.TEXT, data=frame)]
    link = Link(socket, shared)
    await link.run()
    await asyncio.gather(*link.taken)
    shared.taker.take.assert_awaited_once()
    assert socket.send_str.called is acknowledged


async def test_events_that_are_put_back_come_before_later_ones_and_in_their_order() -> None:
    lane, loop = Lane(3), asyncio.get_running_loop()
    events = [Pending(body, None, None, None, 0.0, loop.create_future()) for body in "abcd"]
    lane.put(events[2:])
    lane.put_back(events[:2])
    assert [each.body for each in await lane.take()] == ["a", "b", "c"]
