"""Every signed body has exactly one meaning, and none raises an exception."""

import hashlib
import json
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surelane_ingest.envelope import (
    Challenge,
    Envelope,
    Ignore,
    Malformed,
    RateLimited,
    Subscriptions,
    Take,
    read_event,
    read_form,
)

DEFAULT = frozenset({"app_mention", "message.im"})
MESSAGE = {"type": "message", "channel_type": "im", "channel": "D1", "user": "U1", "ts": "1.2", "text": "hi"}
MENTION = {"type": "app_mention", "channel": "C1", "user": "U1", "ts": "1.2", "text": "<@UBOT> hi"}
SAID = {"type": "message", "user": "U1", "ts": "1.2", "text": "hi"}
AGAIN = {**SAID, "edited": {"user": "U1", "ts": "1.5"}}
EDIT = {**MESSAGE, "subtype": "message_changed", "hidden": True, "ts": "1.5", "message": AGAIN}
DELETION = {**EDIT, "subtype": "message_deleted", "message": None, "previous_message": SAID}
NOBODY: tuple[dict[str, Any], ...] = (
    {"user": "USLACKBOT"},
    {"user": None},
    {"user": "", "username": "Weekly report"},
    {"user": "B1"},
    {"bot_profile": {"id": "B1"}},
)
"""Authors who are no people, and have no ``bot_id``."""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
FIELDS = st.sampled_from(["type", "channel", "user", "app_id", "bot_id", "ts"])


def around(event: Any, **fields: Any) -> dict[str, Any]:
    envelope = {"type": "event_callback", "team_id": "T1", "api_app_id": "A1", "event_id": "Ev1"}
    bot = {"team_id": "T1", "user_id": "UBOT", "is_bot": True}
    return {**envelope, "event": event, "authorizations": [bot], **fields}


def read(payload: Any, types: frozenset[str] = DEFAULT) -> Envelope:
    return read_event(json.dumps(payload).encode(), Subscriptions(types))


def taken(payload: Any, types: frozenset[str] = DEFAULT) -> Take:
    found = read(payload, types)
    assert isinstance(found, Take)
    return found


def form(**fields: str) -> bytes:
    return urlencode(fields).encode()


def test_a_mention_and_a_direct_message_are_taken_under_their_event_id() -> None:
    body = json.dumps(around(MENTION))
    assert read_event(body.encode(), Subscriptions(DEFAULT)) == Take("slack.app_mention", "Ev1", body)
    direct = taken(around(MESSAGE))
    assert (direct.kind, direct.key) == ("slack.message.im", "Ev1")


@pytest.mark.parametrize("sender", [{"app_id": "A1"}, {"user": "UBOT"}])
def test_the_apps_own_messages_are_taken_if_it_asks_and_other_bots_are_not(sender: dict[str, str]) -> None:
    asked = Subscriptions(DEFAULT, own=True)
    own = json.dumps(around({**MESSAGE, "bot_id": "B1", **sender, "metadata": {"event_type": "e"}}))
    found = read_event(own.encode(), asked)
    assert isinstance(found, Take)
    assert found.body == own
    other = json.dumps(around({**MESSAGE, "user": None, "bot_id": "B2", "app_id": "A2"})).encode()
    assert read_event(other, asked) == Ignore("bot")


THROUGH_APP = {"bot_id": "B2", "app_id": "A2", "bot_profile": {"id": "B2", "app_id": "A2", "name": "Voice"}}
CHANNEL = {**MESSAGE, "channel": "C1", "channel_type": "channel"}


@pytest.mark.parametrize(
    "event",
    [
        {**MENTION, "subtype": "me_message"},
        {**MESSAGE, "subtype": "me_message"},
        {**EDIT, "message": {**AGAIN, "subtype": "me_message"}},
        {**MENTION, **THROUGH_APP},
        {**MESSAGE, **THROUGH_APP},
        {**MESSAGE, **THROUGH_APP, "channel_type": "app_home"},
        {**MESSAGE, **THROUGH_APP, "channel_type": None},
        {**MESSAGE, **THROUGH_APP, "subtype": "file_share", "files": [{"id": "F1"}]},
        {**CHANNEL, **THROUGH_APP, "text": "ask <@UBOT>"},
        {**CHANNEL, **THROUGH_APP, "text": "ask <@UBOT|bot>", "subtype": "thread_broadcast"},
        {**EDIT, "message": {**AGAIN, **THROUGH_APP}},
        {**DELETION, "previous_message": {**SAID, **THROUGH_APP}},
    ],
)
def test_what_a_person_says_to_the_bot_is_taken_in_any_form(event: dict[str, Any]) -> None:
    taken(around(event), DEFAULT | {"message.channels"})


WORKFLOW = {**MENTION, "user": None, "subtype": "bot_message", "bot_id": "B3", "workflow_id": "Wf1"}


@pytest.mark.parametrize(
    "event",
    [
        WORKFLOW,
        {**WORKFLOW, "subtype": None},
        {**MENTION, **THROUGH_APP, "bot_profile": {"is_workflow_bot": True}},
        {**MENTION, **THROUGH_APP, "workflow_id": "Wf1"},
        {**MENTION, **THROUGH_APP, "subtype": "bot_message"},
        {**MENTION, **THROUGH_APP, "user": "USLACKBOT", "text": "Reminder: ask <@UBOT>"},
        {**CHANNEL, "subtype": "slackbot_response", "user": "USLACKBOT"},
        {**CHANNEL, **THROUGH_APP},
        {**MENTION, "bot_id": "B1"},
        {**EDIT, "message": {**AGAIN, "user": None, "bot_id": "B2", "subtype": "bot_message"}},
    ],
)
def test_what_no_person_wrote_is_taken_if_the_app_asks(event: dict[str, Any]) -> None:
    types = DEFAULT | {"message.channels"}
    assert read(around(event), types) == Ignore("bot")
    asked = read_event(json.dumps(around(event)).encode(), Subscriptions(types, bots=True))
    assert isinstance(asked, Take)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({**MESSAGE, "channel_type": "channel"}, "type"),
        ({**MESSAGE, "channel_type": "of tomorrow"}, "type"),
        ({"type": "reaction_added", "user": "U1"}, "type"),
        ({**EDIT, "channel_type": "channel"}, "type"),
        ({**EDIT, "message": {**SAID, "bot_id": "B1"}}, "bot"),
        ({**EDIT, "message": {**SAID, "app_id": "A1"}}, "own"),
        ({**EDIT, "message": {**SAID, "user": "UBOT"}}, "own"),
        ({**EDIT, "message": {**SAID, "subtype": "channel_join"}}, "subtype"),
        ({**EDIT, "message": SAID, "previous_message": SAID}, "unchanged"),
        ({**EDIT, "message": SAID}, "unchanged"),
        ({**EDIT, "message": SAID | {"reply_count": 1, "latest_reply": "1.4"}}, "unchanged"),
        ({**DELETION, "previous_message": {**SAID, "bot_id": "B1"}}, "bot"),
        ({**MESSAGE, "subtype": ["odd"]}, "subtype"),
        ({**MESSAGE, "hidden": True}, "hidden"),
        ({**MESSAGE, "bot_id": "B1"}, "bot"),
        ({**MENTION, "bot_id": "B1"}, "bot"),
        *(({**event, **author}, "bot") for event in (MENTION, MESSAGE) for author in NOBODY),
        *(({**EDIT, "message": {**SAID, **author}}, "bot") for author in NOBODY),
        ({**MESSAGE, "app_id": "A1"}, "own"),
        ({**MESSAGE, "user": "UBOT"}, "own"),
    ],
)
def test_what_is_not_for_the_bot_is_ignored(event: dict[str, Any], reason: str) -> None:
    assert read(around(event)) == Ignore(reason)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (EDIT, "message_changed"),
        ({**EDIT, "channel_type": None}, "message_changed"),
        ({**EDIT, "message": {**SAID, "files": [{"id": "F1"}]}, "previous_message": SAID}, "message_changed"),
        ({**EDIT, "message": {**SAID, "subtype": "tombstone", "user": "USLACKBOT"}}, "message_deleted"),
        (DELETION, "message_deleted"),
        ({**DELETION, "previous_message": None}, "message_deleted"),
    ],
)
def test_edits_and_deletions_are_taken_with_the_messages_or_by_name(event: dict[str, Any], kind: str) -> None:
    other = {**event, "channel_type": "channel"}
    assert taken(around(event)).kind == taken(around(other), frozenset({kind})).kind == f"slack.{kind}"
    assert read(around(event), frozenset({"app_mention"})) == Ignore("type")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"channel_type": "channel"}, "channels"),
        ({"channel_type": "group"}, "groups"),
        ({}, "im"),
        ({"channel_type": "mpim"}, "mpim"),
        ({"channel_type": "app_home"}, "im"),
        ({"channel_type": None}, "im"),
        ({"channel_type": None, "channel": "C1"}, "channels"),
        ({"channel_type": None, "channel": "G1"}, "groups"),
        ({"subtype": "file_share"}, "im"),
        ({"subtype": "thread_broadcast"}, "im"),
    ],
)
def test_messages_are_named_as_slacks_subscriptions_are(fields: dict[str, str], name: str) -> None:
    found = taken(around({**MESSAGE, **fields}), frozenset({f"message.{name}"}))
    assert found.kind == f"slack.message.{name}"


def test_the_apps_own_reactions_are_ignored_and_one_edit_in_a_shared_channel_has_one_key() -> None:
    types = frozenset({"reaction_added", "member_joined_channel"})
    assert read(around({"type": "reaction_added", "user": "UBOT"}), types) == Ignore("own")
    assert taken(around({"type": "member_joined_channel", "user": "UBOT"}), types).kind
    person = [{"team_id": "T1", "user_id": "U1", "is_bot": False}]
    assert taken(around(MESSAGE, authorizations=person)).kind, "who authorized the app is not the bot"
    for team, event in (("T1", "Ev1"), ("T2", "Ev2")):
        named: dict[str, Any] = {"team_id": team, "event_id": event, "is_ext_shared_channel": True}
        assert taken({**around({**EDIT, "channel": "C1"}), **named}).key == "message_changed:C1:1.5"


def test_a_mention_and_its_channel_message_are_one_event_where_both_are_taken() -> None:
    types = frozenset({"app_mention", "message.channels"})
    mentioned = taken(around(MENTION, event_id="Ev1"), types)
    written = taken(around({**MENTION, "type": "message", "channel_type": "channel"}, event_id="Ev2"), types)
    assert mentioned.key == written.key == "message:T1:C1:1.2"
    assert taken(around({**MENTION, "ts": None}), types).key == "Ev1"
    assert taken(around(MESSAGE), types | {"message.im"}).key == "Ev1"
    apart = read_event(json.dumps(around(MENTION)).encode(), Subscriptions(types, merge_mentions=False))
    assert isinstance(apart, Take)
    assert apart.key == "Ev1"
    assert taken(around(MENTION, is_ext_shared_channel=True), types).key == "message:C1:1.2"


@pytest.mark.parametrize(
    ("event", "shared", "key"),
    [
        (MENTION, True, "mention:C1:1.2"),
        ({**MENTION, "type": "message", "channel_type": "im"}, True, "message:C1:1.2"),
        ({**MENTION, "ts": None}, True, "Ev1"),
        ({**MENTION, "channel": {"id": "C1"}}, True, "Ev1"),
        (MENTION, False, "Ev1"),
        (MENTION, "true", "Ev1"),
    ],
)
def test_a_message_of_a_shared_channel_has_its_address_as_key(event: Any, shared: object, key: str) -> None:
    assert taken(around(event, event_id="Ev1", is_ext_shared_channel=shared)).key == key


def test_a_key_is_one_that_postgresql_holds_or_the_database_derives_it() -> None:
    for identity in (None, "", 7, ["Ev1"]):
        assert taken(around(MENTION, event_id=identity)).key is None
    held = taken(around({**MENTION, "text": "nul \x00"}, event_id="Ev\x00"))
    assert (held.altered, held.key) == (True, "Ev\ufffd")
    assert "\\u0000" not in held.body
    body = json.dumps(around(MENTION))[:-1] + ', "event_id": "EvLast"}'
    found = read_event(body.encode(), Subscriptions(DEFAULT))
    assert isinstance(found, Take)
    assert (found.key, found.body) == ("EvLast", body), "of a repeated one the last counts"


def filled(**fields: str) -> Take:
    found = read_form(form(**fields))
    assert isinstance(found, Take)
    return found


def test_challenges_notices_of_dropped_events_and_certificate_checks_are_no_events() -> None:
    assert read({"type": "url_verification", "challenge": "abc"}) == Challenge("abc")
    assert read({"type": "url_verification", "challenge": 1}) == Malformed("no challenge")
    notice = {"type": "app_rate_limited", "team_id": "T1", "minute_rate_limited": 5}
    assert read(notice) == RateLimited("T1", 5)
    assert read_form(form(ssl_check="1", token="t")) == Ignore("ssl_check")


@pytest.mark.parametrize(
    "payload",
    [1, "text", None, [], {}, {"type": "nonsense"}, {"type": ["event_callback"]}, MENTION,
     around(None), around([]), around({}), around({"type": 1}), around({"type": None})],
)  # fmt: skip
def test_what_is_no_event_is_malformed(payload: Any) -> None:
    assert isinstance(read(payload), Malformed)


def test_a_command_is_stored_as_its_fields_under_its_trigger() -> None:
    fields = {"command": "/deploy", "text": "api now", "trigger_id": "1.2.abc", "empty": ""}
    found = filled(**fields)
    assert found.kind == "slack.command.deploy"
    assert found.key == "trigger:" + hashlib.sha256(b"1.2.abc").hexdigest()
    assert json.loads(found.body) == fields


def test_forms_that_are_no_command_and_no_interaction_are_malformed() -> None:
    for body in (form(text="x"), form(command="/"), b""):
        assert read_form(body) == Malformed("neither a command nor an interaction")
    assert read_form(b"&".join(b"a=1" for _ in range(1000))) == Malformed("too many fields")
    for payload in ("", "[]", "{}", '{"type": 1}'):
        assert isinstance(read_form(form(payload=payload)), Malformed)


def test_an_interaction_is_stored_as_its_payload() -> None:
    payload = json.dumps({"type": "block_actions", "trigger_id": "1.2.abc", "actions": []})
    key = "trigger:" + hashlib.sha256(b"1.2.abc").hexdigest()
    assert filled(payload=payload) == Take("slack.block_actions", key, payload, waits=True)
    assert filled(payload=json.dumps({"type": "view_closed"})).key is None, "the database derives it"
    menu = '{"type": "block_suggestion", "action_id": "city"}'
    asked, again = filled(payload=menu), filled(payload=menu)
    assert asked.kind == "slack.block_suggestion"
    assert again.key != asked.key, "the same letters typed again are another request"


def test_workers_acknowledge_every_kind_for_which_requests_wait() -> None:
    from surelane_service.subscriptions import INTERACTIONS  # noqa: PLC0415 - when it runs alone
    from surelane_worker.handling.routes import is_interactive  # noqa: PLC0415

    ours = {"view": {"callback_id": "surelane.written"}}
    payloads = [{"type": kind, **more} for kind in INTERACTIONS for more in ({}, ours)]
    found = [filled(payload=json.dumps(payload)) for payload in payloads]
    assert all(each.waits and is_interactive(each.kind) for each in found)
    assert "surelane.answer" in {each.kind for each in found}


@given(VALUES, st.sampled_from([MENTION, MESSAGE]), FIELDS)
def test_no_field_of_an_event_can_break_the_reader(value: Any, event: dict[str, Any], field: str) -> None:
    types = DEFAULT | {"message.channels"}
    assert isinstance(read(around({**event, field: value}), types), Envelope)
    assert isinstance(read(around(event, **{field: value}), types), Envelope)
    assert isinstance(read(around(event, authorizations=value), types), Envelope)
    assert isinstance(read(around(event, authorizations=[value]), types), Envelope)
    assert isinstance(read(around(value), types), Envelope)


@given(st.binary())
def test_no_body_can_break_a_reader(body: bytes) -> None:
    assert isinstance(read_event(body, Subscriptions(DEFAULT)), Envelope)
    assert isinstance(read_form(body), Envelope)
    assert isinstance(read_form(b"payload=" + body), Envelope)
