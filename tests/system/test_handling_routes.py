"""A payload posted to Slack's one URL reaches the route that takes it, in a real worker."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from surelane.calls import Connection
from tests.databases import as_role
from tests.processes import Service
from tests.system.ingest_client import Slack, envelope, served
from tests.system.worker import ended, worker

TEAM = {"team": {"id": "T1", "domain": "acme"}, "user": {"id": "U1"}}


@pytest.fixture
async def slack(database: str) -> AsyncIterator[Slack]:
    async with served(as_role(database, "surelane_ingest"), event_types="message.groups") as running:
        yield running.slack


@pytest.fixture
async def running(database: str) -> AsyncIterator[Service]:
    async with worker(database, SURELANE_MAX_ATTEMPTS="1", SURELANE_EVENT_TYPES="message.groups") as started:
        yield started


def interaction(kind: str, trigger: str, **fields: Any) -> dict[str, str]:
    return {"payload": json.dumps({"type": kind, "trigger_id": trigger, **TEAM, **fields})}


async def test_one_url_leads_every_sort_of_payload_to_its_route(
    slack: Slack, connection: Connection, running: Service
) -> None:
    forms = [
        {"command": "/ping", "trigger_id": "1", "team_id": "T1"},
        interaction("block_actions", "2", actions=[{"action_id": "approve"}]),
        interaction("block_actions", "3", actions=[{"action_id": "deny"}]),
        interaction("view_submission", "4", view={"callback_id": "ask"}),
        interaction("shortcut", "5", callback_id="note"),
        interaction("message_action", "6", callback_id="note"),
        interaction("shortcut", "7", callback_id="other"),
    ]
    for form in forms:
        assert (await slack.form("/slack/events", form)).status == 200
    message = {"type": "message", "channel_type": "group", "channel": "G1", "user": "U1", "ts": "1.1"}
    assert (await slack.event(envelope(message))).status == 200
    rows = [await ended(connection, identity) for identity in range(1, 9)]
    assert [row["result"] and json.loads(row["result"]) for row in rows] == [
        *("pong", "approved", {"unhandled": "no route"}, None, "noted", "noted", "fallback", "pong"),
    ]
    assert [row["outcome"] for row in rows if row["result"] is None] == ["failed"]
    assert json.loads(rows[3]["errors"])[0]["type"] == "HandlerTimeoutError"
    output = "\n".join(running.output)
    assert "no route takes this event" in output
    assert "SURELANE_EVENT_TYPES leaves out app_mention" in output
