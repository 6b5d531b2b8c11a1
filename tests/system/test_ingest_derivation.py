"""Ingest names an event before it is stored; the database derives kind, key and group when it stores it.

Ingest needs kind and key for its logs, metrics and traces. The table has the values; ``tests/sql/test_payloads.py``
compares Python and SQL for many more payloads.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import asyncpg

from surelane.slack import MAX_KEY
from surelane_ingest.envelope import Envelope, Subscriptions, Take, read_event, read_form
from surelane_service import subscriptions
from surelane_worker.handling import routes

Payload = Mapping[str, Any]
TRIGGER = {"trigger_id": "1.2.a"}
TRIGGERED = "trigger:" + hashlib.sha256(b"1.2.a").hexdigest()
LONG = "sha256:" + hashlib.sha256(("é" * (MAX_KEY + 1)).encode()).hexdigest()
ACME = {"id": "T1", "domain": "acme"}
CHANNEL = {"id": "C1", "name": "general"}
DIRECT = {"id": "D1", "name": "directmessage"}
EPHEMERAL = {
    "type": "message",
    "message_ts": "1.2",
    "thread_ts": "1.1",
    "channel_id": "C1",
    "is_ephemeral": True,
}
STARTED = {"ts": "1.1", "thread_ts": "1.1"}
REPLY = {"ts": "1.2", "thread_ts": "1.1"}


def around(**event: Any) -> dict[str, Any]:
    return {"type": "event_callback", "team_id": "T1", "event_id": "Ev1", "event": event}


def named(**fields: Any) -> dict[str, Any]:
    return around(type="team_join") | fields


Cases = list[tuple[Payload, str, str | None, str | None]]
REACTED = {"channel": "C1", "ts": "1.1"}
SHARED = {**around(type="reaction_added", item=REACTED), "is_ext_shared_channel": True}
EVENTS: Cases = [
    (around(type="app_mention", channel="C1", ts="1.1"), "slack.app_mention", "Ev1", "T1:C1:1.1"),
    (around(type="app_mention", channel="C1", **REPLY), "slack.app_mention", "Ev1", "T1:C1:1.1"),
    (around(type="message", channel_type="im", channel="D1", ts="1.1"), "slack.message.im", "Ev1", "T1:D1"),
    (
        around(type="message", channel_type="im", channel="D1", **REPLY),
        "slack.message.im",
        "Ev1",
        "T1:D1:1.1",
    ),
    (around(type="message", channel_type="channel"), "slack.message.channels", "Ev1", None),
    (around(type="message", channel_type="group"), "slack.message.groups", "Ev1", None),
    (around(type="message", channel_type="mpim"), "slack.message.mpim", "Ev1", None),
    (around(type="message", channel_type="app_home"), "slack.message", "Ev1", None),
    (around(type="message", channel_type=["im"]), "slack.message", "Ev1", None),
    (around(type="reaction_added", item=REACTED), "slack.reaction_added", "Ev1", "T1:C1:1.1"),
    (around(type="reaction_added", item=REACTED | {"channel": "D1"}), "slack.reaction_added", "Ev1", "T1:D1"),
    (SHARED, "slack.reaction_added", "Ev1", "C1:1.1"),
    (SHARED | {"team_id": "T2"}, "slack.reaction_added", "Ev1", "C1:1.1"),
    (SHARED | {"is_ext_shared_channel": "true"}, "slack.reaction_added", "Ev1", "T1:C1:1.1"),
    (named(), "slack.team_join", "Ev1", None),
    (around(type="t" * 300), "slack." + "t" * 194, "Ev1", None),
    (named(event_id="é" * MAX_KEY), "slack.team_join", "é" * MAX_KEY, None),
    (named(event_id="é" * (MAX_KEY + 1)), "slack.team_join", LONG, None),
    (named(event_id=7), "slack.team_join", None, None),
    (named(event_id=None), "slack.team_join", None, None),
    (named(event_id="", **TRIGGER), "slack.team_join", TRIGGERED, None),
]
COMMANDS: Cases = [
    ({"command": "/deploy", "channel_id": "C1", **TRIGGER}, "slack.command.deploy", TRIGGERED, None),
    ({"command": "//deploy/", **TRIGGER}, "slack.command.deploy/", TRIGGERED, None),
    ({"command": "deploy", "trigger_id": ""}, "slack.command.deploy", None, None),
    ({"command": "/" + "d" * 300}, "slack.command." + "d" * 186, None, None),
    ({"command": "/deploy", "type": "odd", **TRIGGER}, "slack.odd", TRIGGERED, None),
]
OURS = {"callback_id": "surelane.written"}
STOP = [{"action_id": "surelane.stop"}]
CLICK = {"type": "block_actions", "team": ACME, "channel": CHANNEL, **TRIGGER}
CLICKS: list[tuple[Payload, str]] = [
    ({"message": REPLY}, "T1:C1:1.1"),
    ({"message": {"ts": "1.1"}}, "T1:C1:1.1"),
    ({"team": None, "message": {"ts": "1.1"}}, "C1:1.1"),
    ({"channel": DIRECT, "message": {"ts": "1.1"}}, "T1:D1"),
    ({"channel": DIRECT, "message": STARTED}, "T1:D1"),
    ({"channel": DIRECT, "message": REPLY}, "T1:D1:1.1"),
    ({"container": EPHEMERAL}, "T1:C1:1.1"),
    ({"message": REPLY, "actions": [{"action_id": "mine"}]}, "T1:C1:1.1"),
    ({"message": REPLY, "actions": "surelane.stop"}, "T1:C1:1.1"),
]
INTERACTIONS: Cases = [
    *((CLICK | dict(changed), "slack.block_actions", TRIGGERED, group) for changed, group in CLICKS),
    ({**CLICK, "type": "message_action", "message": REPLY}, "slack.message_action", TRIGGERED, "T1:C1:1.1"),
    ({**CLICK, "message": REPLY, "actions": STOP}, "surelane.answer", TRIGGERED, "T1:C1:1.1"),
    ({"type": "view_submission", "view": OURS, **TRIGGER}, "surelane.answer", TRIGGERED, None),
    ({"type": "shortcut", "team": ACME, **TRIGGER}, "slack.shortcut", TRIGGERED, None),
    ({"type": "view_submission", "view": {"id": "V1"}, **TRIGGER}, "slack.view_submission", TRIGGERED, None),
    ({"type": "view_closed", "team": ACME, "view": {"id": "V1"}}, "slack.view_closed", None, None),
    ({"type": "message", "channel_type": "im", **TRIGGER}, "slack.message.im", TRIGGERED, None),
    (named(), "slack.team_join", "Ev1", None),
]


def of_form(payload: Payload) -> Envelope:
    return read_form(urlencode({"payload": json.dumps(payload)}).encode())


def test_workers_acknowledge_every_kind_for_which_requests_wait() -> None:
    documented = [payload for payload, *_ in INTERACTIONS if payload["type"] in subscriptions.INTERACTIONS]
    kinds = set()
    for payload in documented:
        taken = of_form(payload)
        assert isinstance(taken, Take)
        assert taken.waits
        kinds.add(taken.kind)
    assert "surelane.answer" in kinds
    assert all(map(routes.is_interactive, kinds))


async def test_ingest_and_the_database_derive_the_same_kind_and_key(shared_database: str) -> None:
    types = frozenset(str(payload["event"]["type"]) for payload, *_ in EVENTS)
    messages = {f"message.{where}" for where in ("im", "channels", "groups", "mpim")}
    subscriptions = Subscriptions(types - {"app_mention"} | messages)
    # Without messages of channels, a mention has no key of its own.
    mentions = Subscriptions(frozenset({"app_mention"}))
    taken = [
        *(
            read_event(json.dumps(each).encode(), mentions if kind == "slack.app_mention" else subscriptions)
            for each, kind, *_ in EVENTS
        ),
        *(read_form(urlencode(payload).encode()) for payload, *_ in COMMANDS),
        *(of_form(payload) for payload, *_ in INTERACTIONS),
    ]
    events = [event for event in taken if isinstance(event, Take)]
    assert len(events) == len(taken)
    connection = await asyncpg.connect(shared_database)
    found = await connection.fetch(
        "select agent.event_kind(event), agent.event_item_key(event), agent.event_group_key(event)"
        " from unnest($1::text[]) with ordinality as given (text, nth), lateral (select text::jsonb) as read (event)"
        " order by nth",
        [event.body for event in events],
    )
    await connection.close()
    expected = [*EVENTS, *COMMANDS, *INTERACTIONS]
    for event, (kind, key, group), (payload, *wanted) in zip(events, found, expected, strict=True):
        assert [event.kind, event.key, group] == wanted, payload
        assert (kind, key) == (event.kind, event.key or key), payload
