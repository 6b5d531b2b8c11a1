"""The page reads an event's place as the database does."""

import json
from typing import Any

import pytest

from surelane.calls import Connection
from surelane_operator.console.place import place_of

PAYLOADS: dict[str, Any] = {
    "mention": {
        "type": "event_callback",
        "team_id": "T1",
        "event": {"channel": "C1", "user": "U1", "ts": "1.2"},
    },
    "reaction": {
        "type": "event_callback",
        "team_id": "T1",
        "event": {"user": "U1", "item": {"channel": "C1", "ts": "1.2"}},
    },
    "channel created": {
        "type": "event_callback",
        "team_id": "T1",
        "event": {"channel": {"id": "C1", "name": "x"}},
    },
    "command": {"command": "/x", "team_id": "T1", "channel_id": "C1", "user_id": "U1"},
    "click": {
        "type": "block_actions",
        "team": {"id": "T1"},
        "user": {"id": "U1"},
        "channel": {"id": "C1"},
        "container": {"channel_id": "C1", "message_ts": "1.2"},
    },
    "modal": {"type": "view_submission", "team": {"id": "T1"}, "user": {"id": "U1"}, "view": {}},
    "job": {"n": 1},
    "no object": [1, 2],
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
async def test_places_are_those_of_the_database(queue: Connection, payload: Any) -> None:
    row = await queue.fetchrow(
        "select agent.event_workspace($1), agent.event_channel($1), agent.event_user($1)", json.dumps(payload)
    )
    place = place_of(payload)
    assert row is not None
    assert (place.workspace or "", place.channel or "", place.user or "") == tuple(row)
