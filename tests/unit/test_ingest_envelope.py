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
EDIT = {**MESSAGE, "subtype": "message_changed", "hidden": True, "ts": "1.5", "message": SAID}
DELETION = {**EDIT, "subtype": "message_deleted", "message": None, "previous_message": SAID}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def around(event: Any, **fields: Any) -> dict[str, Any]:
    envelope = {
        "type": "event_callback",
        "team_id": "T1",
        "api_app_id": "A1",
        "event_id": "Ev1",
        "event": event,
    }
    return {**envelope, "authorizations": [{"team_id": "T1", "user_id": "UBOT", "is_bot": True}], **fields}


def read(payload: Any, types: frozenset[str] = DEFAULT) -> Envelope:
    return read_event(json.dumps(payload).encode(), Subscriptions(types))


def form(**fields: str) -> bytes:
    return urlencode(fields).encode()


def test_a_mention_and_a_direct_message_are_taken_under_their_event_id() -> None:
    body = json.dumps(around(MENTION))
    assert read_event(body.encode(), Subscriptions(DEFAULT)) == Take("slack.app_mention", "Ev1", body)
    taken = read(around(MESSAGE))
    assert isinstance(taken, Take)
    assert (taken.kind, taken.key) == ("slack.message.im", "Ev1")


@pytest.mark.parametrize(
    "event",
    [{**MESSAGE, "bot_id": "B1", "app_id": "A1"}, {**MESSAGE, "bot_id": "B1", "user": "UBOT"}],
)
def test_the_apps_own_messages_are_taken_if_it_asks_for_them_and_other_bots_are_not(
    event: dict[str, Any],
) -> None:
    asked = Subscriptions(DEFAULT, own=True)
    own = around({**event, "metadata": {"event_type": "e", "event_payload": {}}})
    taken = read_event(json.dumps(own).encode(), asked)
    assert isinstance(taken, Take)
    assert taken.body == json.dumps(own)
    other = json.dumps(around({**MESSAGE, "bot_id": "B2", "app_id": "A2"})).encode()
    assert read_event(other, asked) == Ignore("bot")


def test_mentions_that_are_not_merged_keep_their_event_id() -> None:
    body = json.dumps(around(MENTION)).encode()
    merged, apart = (
        read_event(body, Subscriptions(DEFAULT | {"message.channels"}, merge_mentions=merge))
        for merge in (True, False)
    )
    assert isinstance(merged, Take)
    assert isinstance(apart, Take)
    assert merged.key is not None
    assert merged.key.startswith("message:")
    assert apart.key == "Ev1"


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({**MESSAGE, "channel_type": "channel"}, "type"),
        ({"type": "reaction_added", "user": "U1"}, "type"),
        ({**EDIT, "channel_type": "channel"}, "type"),
        ({**EDIT, "message": {**SAID, "bot_id": "B1"}}, "bot"),
        ({**EDIT, "message": {**SAID, "app_id": "A1"}}, "own"),
        ({**EDIT, "message": {**SAID, "user": "UBOT"}}, "own"),
        ({**EDIT, "message": {**SAID, "subtype": "channel_join"}}, "subtype"),
        ({**EDIT, "message": SAID, "previous_message": SAID}, "unchanged"),
        ({**DELETION, "previous_message": {**SAID, "bot_id": "B1"}}, "bot"),
        ({**MESSAGE, "subtype": ["odd"]}, "subtype"),
        ({**MESSAGE, "hidden": True}, "hidden"),
        ({**MESSAGE, "bot_id": "B1"}, "bot"),
        ({**MENTION, "bot_id": "B1"}, "bot"),
        ({**MESSAGE, "app_id": "A1"}, "own"),
        ({**MESSAGE, "user": "UBOT"}, "own"),
    ],
)
def test_what_is_not_for_the_bot_is_ignored(event: dict[str, Any], reason: str) -> None:
    assert read(around(event)) == Ignore(reason)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (EDIT, "slack.message_changed"),
        (
            {**EDIT, "message": {**SAID, "files": [{"id": "F1"}]}, "previous_message": SAID},
            "slack.message_changed",
        ),
        ({**EDIT, "message": {**SAID, "subtype": "tombstone", "user": "USLACKBOT"}}, "slack.message_deleted"),
        (DELETION, "slack.message_deleted"),
        ({**DELETION, "previous_message": None}, "slack.message_deleted"),
    ],
)
def test_what_people_edit_and_delete_is_taken_with_the_messages_or_by_its_name(
    event: dict[str, Any], kind: str
) -> None:
    by_name = frozenset({kind.removeprefix("slack.")})
    other = {**event, "channel_type": "channel"}
    found = (
        read(around(event)),
        read(around(other), by_name),
        read(around(event), frozenset({"app_mention"})),
    )
    assert [each.kind if isinstance(each, Take) else each for each in found] == [kind, kind, Ignore("type")]


def test_one_edit_in_a_shared_channel_has_one_key_for_all_that_report_it() -> None:
    envelopes = [
        {
            **around({**EDIT, "channel": "C1"}),
            "team_id": team,
            "event_id": event,
            "is_ext_shared_channel": True,
        }
        for team, event in (("T1", "Ev1"), ("T2", "Ev2"))
    ]
    keys = {each.key for each in map(read, envelopes) if isinstance(each, Take)}
    assert keys == {"message_changed:C1:1.5"}


@pytest.mark.parametrize("subtype", ["file_share", "thread_broadcast"])
def test_messages_with_files_and_broadcast_replies_are_taken(subtype: str) -> None:
    assert isinstance(read(around({**MESSAGE, "subtype": subtype})), Take)


def test_the_apps_own_reactions_are_ignored_and_its_own_memberships_are_not() -> None:
    types = frozenset({"reaction_added", "member_joined_channel"})
    assert read(around({"type": "reaction_added", "user": "UBOT"}), types) == Ignore("own")
    assert isinstance(read(around({"type": "member_joined_channel", "user": "UBOT"}), types), Take)


def test_a_person_who_authorized_the_app_is_not_the_bot() -> None:
    person = [{"team_id": "T1", "user_id": "U1", "is_bot": False}]
    assert isinstance(read(around(MESSAGE, authorizations=person)), Take)


@pytest.mark.parametrize(
    ("where", "name"), [("channel", "channels"), ("group", "groups"), ("im", "im"), ("mpim", "mpim")]
)
def test_messages_are_named_as_slacks_subscriptions_are(where: str, name: str) -> None:
    taken = read(around({**MESSAGE, "channel_type": where}), frozenset({f"message.{name}"}))
    assert isinstance(taken, Take)
    assert taken.kind == f"slack.message.{name}"


def test_a_mention_and_its_channel_message_are_one_event_where_both_are_taken() -> None:
    types = frozenset({"app_mention", "message.channels"})
    mentioned = read(around(MENTION, event_id="Ev1"), types)
    written = read(around({**MENTION, "type": "message", "channel_type": "channel"}, event_id="Ev2"), types)
    assert isinstance(mentioned, Take)
    assert isinstance(written, Take)
    assert mentioned.key == written.key == "message:T1:C1:1.2"
    without_ts = read(around({**MENTION, "ts": None}), types)
    assert isinstance(without_ts, Take)
    assert without_ts.key == "Ev1"
    direct = read(around(MESSAGE), types | {"message.im"})
    assert isinstance(direct, Take)
    assert direct.key == "Ev1"


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
def test_a_message_of_a_shared_channel_has_its_address_as_key(
    event: dict[str, Any], shared: object, key: str
) -> None:
    taken = read(around(event, event_id="Ev1", is_ext_shared_channel=shared))
    assert isinstance(taken, Take)
    assert taken.key == key


@pytest.mark.parametrize("identity", [None, "", 7, ["Ev1"]])
def test_without_a_sound_event_id_the_database_derives_the_key(identity: object) -> None:
    taken = read(around(MENTION, event_id=identity))
    assert isinstance(taken, Take)
    assert taken.key is None


def test_what_postgresql_cannot_hold_is_replaced_in_the_key_too() -> None:
    taken = read(around({**MENTION, "text": "nul \x00"}, event_id="Ev\x00"))
    assert isinstance(taken, Take)
    assert taken.altered
    assert taken.key == "Ev\ufffd"
    assert "\\u0000" not in taken.body


def test_of_a_repeated_key_the_last_counts() -> None:
    body = json.dumps(around(MENTION))[:-1] + ', "event_id": "EvLast"}'
    taken = read_event(body.encode(), Subscriptions(DEFAULT))
    assert isinstance(taken, Take)
    assert (taken.key, taken.body) == ("EvLast", body)


def test_the_url_is_verified_with_the_challenge() -> None:
    assert read({"type": "url_verification", "challenge": "abc"}) == Challenge("abc")
    assert read({"type": "url_verification", "challenge": 1}) == Malformed("no challenge")


def test_a_notice_that_events_are_dropped_is_no_event() -> None:
    assert read({"type": "app_rate_limited", "team_id": "T1", "minute_rate_limited": 5}) == RateLimited(
        "T1", 5
    )


@pytest.mark.parametrize(
    "payload",
    [1, "text", None, [], {}, {"type": "nonsense"}, {"type": ["event_callback"]}, MENTION,
     around(None), around([]), around({}), around({"type": 1}), around({"type": None})],
)  # fmt: skip
def test_what_is_no_event_is_malformed(payload: Any) -> None:
    assert isinstance(read(payload), Malformed)


def test_a_command_is_stored_as_its_fields_under_its_trigger() -> None:
    fields = {
        "command": "/deploy",
        "text": "api now",
        "trigger_id": "1.2.abc",
        "response_url": "https://x",
        "empty": "",
    }
    taken = read_form(form(**fields))
    assert isinstance(taken, Take)
    assert taken.kind == "slack.command.deploy"
    assert taken.key == "trigger:" + hashlib.sha256(b"1.2.abc").hexdigest()
    assert json.loads(taken.body) == fields


def test_forms_that_are_no_command_are_malformed() -> None:
    assert read_form(form(text="x")) == Malformed("neither a command nor an interaction")
    assert read_form(form(command="/")) == Malformed("neither a command nor an interaction")
    assert read_form(b"") == Malformed("neither a command nor an interaction")
    assert read_form(b"&".join(b"a=1" for _ in range(1000))) == Malformed("too many fields")


def test_certificate_checks_are_not_events() -> None:
    assert read_form(form(ssl_check="1", token="t")) == Ignore("ssl_check")


def test_an_interaction_is_stored_as_its_payload() -> None:
    payload = json.dumps({"type": "block_actions", "trigger_id": "1.2.abc", "actions": []})
    digest = hashlib.sha256(b"1.2.abc").hexdigest()
    assert read_form(form(payload=payload)) == Take(
        "slack.block_actions", f"trigger:{digest}", payload, waits=True
    )


def test_the_database_derives_the_key_of_an_interaction_without_a_trigger() -> None:
    taken = read_form(form(payload=json.dumps({"type": "view_closed"})))
    assert isinstance(taken, Take)
    assert taken.key is None


def test_menus_that_ask_for_their_options_are_taken() -> None:
    taken = read_form(form(payload='{"type": "block_suggestion", "action_id": "city"}'))
    assert isinstance(taken, Take)
    assert taken.kind == "slack.block_suggestion"
    again = read_form(form(payload='{"type": "block_suggestion", "action_id": "city"}'))
    assert isinstance(again, Take)
    assert again.key != taken.key, "the same letters typed again are another request"


@pytest.mark.parametrize(
    "body", [b"", form(payload=""), form(payload="[]"), form(payload="{}"), form(payload='{"type": 1}')]
)
def test_forms_that_are_no_interaction_are_malformed(body: bytes) -> None:
    assert isinstance(read_form(body), Malformed)


@given(
    VALUES,
    st.sampled_from([MENTION, MESSAGE]),
    st.sampled_from(["type", "channel", "user", "app_id", "bot_id", "ts"]),
)
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
