"""Every kind of Slack's payloads names a place for the reply, and an installation."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from surelane.events import Event
from surelane.slack import Place, place_of
from surelane_worker.slack.replies import _response_url


def inner(**fields: Any) -> dict[str, Any]:
    return {"type": "event_callback", "team_id": "T1", "event": fields}


@pytest.mark.parametrize(
    ("payload", "place"),
    [
        pytest.param(
            inner(type="app_mention", channel="C1", ts="1.1", user="U1"),
            Place("C1", "1.1", "1.1", "1.1", "U1", "T1", "T1"),
            id="a message that begins a thread",
        ),
        pytest.param(
            inner(type="message", channel="C1", ts="2.2", thread_ts="1.1", user="U1"),
            Place("C1", "1.1", "2.2", "2.2", "U1", "T1", "T1"),
            id="a message in a thread",
        ),
        pytest.param(
            inner(type="reaction_added", item={"channel": "C1", "ts": "1.1"}, user="U1", event_ts="3.3"),
            Place("C1", "1.1", "1.1", "1.1", "U1", "T1", "T1"),
            id="a reaction",
        ),
        pytest.param(
            inner(assistant_thread={"channel_id": "D1", "thread_ts": "1.1"}, event_ts="3.3"),
            Place("D1", "1.1", None, "3.3", None, "T1", "T1"),
            id="an assistant's thread",
        ),
        pytest.param(
            inner(type="member_joined_channel", channel="C1", user="U1", event_ts="3.3"),
            Place("C1", None, None, "3.3", "U1", "T1", "T1"),
            id="an event about no message",
        ),
        pytest.param(
            inner(type="channel_created", channel={"id": "C1", "name": "new"}, event_ts="3.3"),
            Place("C1", None, None, "3.3", None, "T1", "T1"),
            id="an event with a channel object",
        ),
        pytest.param(
            {"command": "/hi", "team_id": "T1", "channel_id": "C1", "user_id": "U1"},
            Place("C1", None, None, None, "U1", "T1", "T1"),
            id="a slash command",
        ),
        pytest.param(
            {name: {"id": f"{name[0].upper()}1"} for name in ("team", "user", "channel")}
            | {"type": "block_actions", "message": {"ts": "2.2", "thread_ts": "1.1"}},
            Place("C1", "1.1", "2.2", "2.2", "U1", "T1", "T1"),
            id="a button in a thread",
        ),
        pytest.param(
            {"type": "view_submission", "user": {"id": "U1"}, "channel": None}, Place(user="U1"), id="a modal"
        ),
        pytest.param(
            inner(channel=7, ts=None, user=[], item="x"), Place(team="T1", workspace="T1"), id="nonsense"
        ),
    ],
)
def test_place(payload: dict[str, Any], place: Place) -> None:
    assert place_of(payload) == place


@pytest.mark.parametrize(
    "named",
    [{"response_url": "https://r"}, {"response_urls": [{"block_id": "b", "response_url": "https://r"}]}],
)
def test_only_an_event_of_slacks_has_a_response_url(named: dict[str, Any]) -> None:
    now, body = datetime(2025, 1, 1, tzinfo=UTC), json.dumps({"channel": "C1", **named})
    assert _response_url(Event(1, "slack.view_submission", now, 1, 1, now, body)) == "https://r"
    assert _response_url(Event(1, "agent-turn", now, 1, 1, now, body)) is None
