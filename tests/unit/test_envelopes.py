"""Sealed values keep what SQL reads in the clear, hide the rest, and are refused when they were changed."""

import json
from base64 import b64decode, b64encode
from typing import Any

import pytest

from surelane_service.envelopes import (
    EVENT,
    IDS,
    SEALED,
    VALUE,
    DamagedError,
    DataKey,
    clear_part,
    key_id_of,
    workspace_of,
)

SECRET = "the merger closes on friday"
KEY = DataKey.new("T0ACME")
MENTION = {
    "type": "event_callback",
    "team_id": "T0ACME",
    "event_id": "Ev1",
    "event_time": 1_700_000_000,
    "event": {
        "type": "message",
        "channel_type": "im",
        "channel": "D0123456789",
        "user": "U0123456789",
        "text": f"<@U0MENTIONED> {SECRET}",
        "ts": "1700000000.000100",
        "files": [{"name": SECRET, "user": "U0FILEOWNER1"}],
    },
}


def sealed(payload: dict[str, Any], key: DataKey = KEY) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(key.seal(json.dumps(payload), clear_part(payload)))
    return value


def test_a_sealed_payload_opens_as_it_was_and_shows_no_text() -> None:
    value = sealed(MENTION)
    assert json.loads(KEY.open(value[SEALED])) == MENTION
    assert SECRET not in json.dumps(value)
    assert SECRET.encode() not in b64decode(value[SEALED])
    assert value["event"] == {
        name: MENTION["event"][name]  # type: ignore[index]
        for name in ("type", "channel_type", "ts", "channel", "user")
    }
    assert key_id_of(value[SEALED]) == KEY.id
    assert workspace_of(value) == "T0ACME"


def test_erasing_finds_the_ids_that_stand_in_the_text() -> None:
    assert sealed(MENTION)[IDS] == ["U0FILEOWNER1", "U0MENTIONED"]


@pytest.mark.parametrize(
    "payload",
    [
        {"user": f"a {SECRET}", "channel": {"id": "C1", "name": SECRET}, "text": SECRET},
        {"type": "block_actions", "actions": [{"action_id": SECRET, "value": SECRET}]},
        {"type": "view_submission", "view": {"callback_id": SECRET, "state": {"values": SECRET}}},
        {"type": SECRET, "team": {"id": "T1", "domain": SECRET}, "item": {"text": SECRET}},
        {"command": "/deploy", "text": SECRET, "user_name": SECRET, "response_url": SECRET},
    ],
)
def test_texts_of_every_kind_of_payload_are_hidden(payload: dict[str, Any]) -> None:
    value = sealed(payload)
    assert SECRET not in json.dumps(value)
    assert json.loads(KEY.open(value[SEALED])) == payload


def test_the_same_text_is_sealed_differently_each_time() -> None:
    assert sealed(MENTION)[SEALED] != sealed(MENTION)[SEALED]


@pytest.mark.parametrize("changed", ["sealed", "version", "short", "garbage", "purpose"])
def test_a_changed_value_is_refused(changed: str) -> None:
    value = sealed(MENTION)
    raw = bytearray(b64decode(value[SEALED]))
    match changed:
        case "sealed":
            raw[-1] ^= 1
        case "version":
            raw[0] = 9
        case "short":
            raw = raw[:20]
    value[SEALED] = b64encode(bytes(raw)).decode()
    if changed == "garbage":
        value[SEALED] = "☃"
    with pytest.raises(DamagedError, match="damaged, or was changed"):
        KEY.open(value[SEALED], EVENT if changed == "purpose" else VALUE)


def test_another_workspaces_key_does_not_open_it() -> None:
    with pytest.raises(DamagedError):
        DataKey(KEY.id, "T0OTHER", DataKey.new("T0OTHER").raw).open(sealed(MENTION)[SEALED])


def test_large_values_are_compressed_and_numbers_keep_their_form() -> None:
    text = json.dumps({"text": "again " * 10_000})
    assert len(KEY.seal(text, {})) < len(text) / 20
    numbers = '{"n": 1.10, "large": 1e400}'
    assert KEY.open(json.loads(KEY.seal(numbers, {}))[SEALED]) == numbers


def test_a_key_never_shows_itself() -> None:
    assert repr(KEY.raw) not in repr(KEY)
    assert KEY.content_key("yes") == KEY.content_key("yes") != DataKey.new("T0ACME").content_key("yes")
