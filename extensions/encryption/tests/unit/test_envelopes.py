"""Sealed values keep what SQL reads in the clear, hide the rest, and are refused when they were changed."""

import json
import re
import subprocess
import sys
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surelane.codec import ERROR, RESULT, SEALED, DamagedError, Location
from surelane_encryption import envelopes
from surelane_encryption.envelopes import DIGEST_BYTES, EVENT, IDS, VALUE, DataKey, clear_text
from surelane_encryption.keys import ID_BYTES, NONCE_BYTES
from surelane_encryption.packing import pack, unpack

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


# What can stand in a payload at the names that SQL reads, and at others.
NAMES = st.sampled_from(
    (
        *("type", "user", "channel", "ts", "team_id", "team", "event_ts", "agent", "is_ext_shared_channel"),
        *("event_time", "event_id", "item", "message", "actions", "view", "text", "blocks"),
    )
)
FOUND = (
    st.sampled_from(
        ("U0123456789", "1700000000.000100", "a b", "", 'a"b', "a\\b", "a\tb", "é", "%s", "x" * 201)
    )
    | st.booleans()
    | st.integers()
    | st.none()
    | st.fixed_dictionaries({"id": st.text(max_size=3), "ts": st.just("1.2")})
    | st.just([{"action_id": "surelane.answer"}])
)
OBJECTS = st.dictionaries(NAMES, FOUND)

BY_THE_FIRST_FORM = (
    "AQAAAAAAAAAAc3Nzc3Nzc3Nzc3Nzc3Nzc25ubm5ubm5ubm5ubl9bAVhjmrx4IuDefW2CmG/xaDGPWR8FDuZdOOkIEkxqRYJxZMYcfwJnf9BgJvEQETQj"
    "53M="
)
"""A text that zlib compressed, sealed with a salt of its own."""
BY_THIS_FORM = (
    "AQAAAAAAAAAAmZRbPAiMWpxuxlgfGSMbKYvMhznFyuOHRInATVuWT4kwirP9PFzPkaJhIV4gbdkN1+407CKnlAhLbKWlpd7P4rKzlsY6wYsha31IQrFDpAXG"
    "X5L47qbtNewEHXQz8Ht92jVccECtlQ+TaHLDwMbtY9CGykKtol6ImujjI8ziKK/9"
)
BEFORE_DIGEST = 1 + ID_BYTES + envelopes.SALT_BYTES + NONCE_BYTES
FIXED = DataKey(bytes(8), "T0", bytes(range(32)))


def sealed(payload: dict[str, Any], key: DataKey = KEY) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(key.seal(json.dumps(payload), clear_text(payload)))
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
    assert envelopes.key_id_of(envelopes.decoded(value[SEALED])) == KEY.id
    assert envelopes.workspace_of(value) == "T0ACME"
    assert value[IDS] == ["U0FILEOWNER1", "U0MENTIONED"], "an erasure finds the ids of the text"
    assert sealed(MENTION)[SEALED] != value[SEALED]
    with pytest.raises(DamagedError):
        DataKey(KEY.id, "T0OTHER", DataKey.new("T0OTHER").raw).open(value[SEALED])
    assert repr(KEY.raw) not in repr(KEY), "a key never shows itself"
    assert KEY.content_key("yes") == KEY.content_key("yes") != DataKey.new("T0ACME").content_key("yes")


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


def test_texts_of_all_sizes_are_packed_large_ones_are_compressed_and_numbers_keep_their_form() -> None:
    for size, payload in product((0, 399, 400, 1499, 1500, 100_000), (True, False)):
        text = ("é and more. " * (size // 12 + 1))[:size]
        assert unpack(pack(text, payload=payload)) == text
    text = json.dumps({"text": "again " * 10_000})
    assert len(KEY.seal(text)) < len(text) / 20
    numbers = '{"n": 1.10, "large": 1e400}'
    assert KEY.open(json.loads(KEY.seal(numbers))[SEALED]) == numbers


@given(envelope=OBJECTS, event=OBJECTS | FOUND)
def test_the_clear_part_is_the_same_as_text(envelope: dict[str, Any], event: object) -> None:
    for payload in (envelope, {**envelope, "event_time": 17, "team_id": "T1", "type": "e", "event": event}):
        assert json.loads(clear_text(payload)) == envelopes.clear_part(payload)
    assert '": ' not in clear_text(MENTION), (
        "a usual message takes the short way: the JSON encoder writes this"
    )


@given(
    st.lists(st.sampled_from(('"', "<", "@", "#", "U", "W", "9", "UABCDEFGH", "U0ABCDEFG", "a"))).map("".join)
)
def test_ids_are_mentions_and_words_and_a_hash_stands_for_a_word_without_a_digit(text: str) -> None:
    mentions = set(re.findall(r"<[@#]([UWC][A-Z0-9]{2,20})", text))
    words = set(re.findall(r"(?<![A-Za-z0-9])[UWCDGTEB][A-Z0-9]{8,20}(?![A-Za-z0-9])", text)) - mentions
    hashed = {sha256(word.encode()).hexdigest()[:16] if word.isalpha() else word for word in words}
    assert json.loads(KEY.seal(text))[IDS] == sorted(mentions | hashed)


def test_what_was_stored_by_earlier_forms_or_packed_by_pythons_own_module_opens_in_every_thread() -> None:
    assert json.loads(FIXED.open(BY_THE_FIRST_FORM)) == {"text": "as before " * 45}
    assert json.loads(FIXED.open(BY_THIS_FORM, EVENT))["event"]["text"] == "as now " * 50
    assert FIXED.open(BY_THE_FIRST_FORM, at=Location(7, RESULT)) == FIXED.open(BY_THE_FIRST_FORM)
    stored = b64decode("Aii1L/1gygCdAQCgQUNNRTFoZWxsbyB0aGVyZSAifX0KAFkvlaorEITrKokaqGQEHfRS8B14MDfkf4BYsYA=")
    said = "hello there " * 30
    event = {"type": "app_mention", "user": "U01", "text": said}
    envelope = {"type": "event_callback", "team_id": "T0ACME", "event": event}
    text = json.dumps(envelope, separators=(",", ":"))
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(unpack, [stored] * 100)) == {text}


def test_a_value_for_a_place_opens_there_and_where_its_reader_knows_no_place() -> None:
    sealed = json.loads(KEY.seal("1", at=Location(7, RESULT)))[SEALED]
    for place in (None, Location(7, RESULT), Location(8, RESULT, rerun_of=[7])):
        assert KEY.open(sealed, VALUE, place) == "1"
    for place in (
        Location(8, RESULT),
        Location(7, ERROR),
        Location(None, RESULT),
        Location(8, ERROR, rerun_of=[7]),
    ):
        with pytest.raises(DamagedError):
            KEY.open(sealed, VALUE, place)
    anywhere = json.loads(KEY.seal("1", at=Location(None, RESULT)))[SEALED]
    assert KEY.open(anywhere, VALUE, Location(7, RESULT)) == "1"


@pytest.mark.parametrize("changed", [0, BEFORE_DIGEST, BEFORE_DIGEST + DIGEST_BYTES - 1])
def test_the_place_of_a_value_cannot_be_changed_or_taken_away(changed: int) -> None:
    place = Location(7, RESULT)
    raw = bytearray(b64decode(json.loads(KEY.seal("1", at=place))[SEALED]))
    raw[changed] ^= 3  # of the first byte: from a value for a place to one for any
    for where in (place, None):
        with pytest.raises(DamagedError):
            KEY.open(bytes(raw), VALUE, where)
    other = b64decode(json.loads(KEY.seal("1", at=Location(8, RESULT)))[SEALED])
    raw[0] ^= 3 if changed == 0 else 0
    raw[BEFORE_DIGEST : BEFORE_DIGEST + DIGEST_BYTES] = other[BEFORE_DIGEST : BEFORE_DIGEST + DIGEST_BYTES]
    with pytest.raises(DamagedError):
        KEY.open(bytes(raw), VALUE, Location(8, RESULT))


def test_a_text_that_was_not_packed_is_refused_and_the_next_one_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = pack("and so on " * 100)
    for damaged in (packed[:-1], packed[:1], packed[:1] + b"no frame"):
        with pytest.raises(ValueError, match="was packed"):
            unpack(damaged)
        assert unpack(packed) == "and so on " * 100
    monkeypatch.setattr("surelane_encryption.envelopes.pack", lambda text, payload: b"\x09" + text.encode())  # noqa: ARG005
    value = json.loads(KEY.seal("{}"))[SEALED]
    with pytest.raises(DamagedError):  # by a way that is not known
        KEY.open(value)


@pytest.mark.parametrize("times", [2, 6])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_a_message_takes_less_space_encrypted_than_plain(times: int, separators: tuple[str, str]) -> None:
    said = "Could somebody look at the payments service? It has been failing since lunch. " * times
    section = {"type": "rich_text_section", "elements": [{"type": "text", "text": said}]}
    event = {"type": "message", "user": "U0123456789", "ts": "1700000000.000100", "text": said}
    event |= {"team": "T0ACME123", "channel": "C0123456789", "event_ts": "1700000000.000100"}
    blocks = [{"type": "rich_text", "block_id": "Ab1", "elements": [section]}]
    bot = {"enterprise_id": None, "team_id": "T0ACME123", "user_id": "U0BOT567890", "is_bot": True}
    message = {
        "token": "x",
        "team_id": "T0ACME123",
        "api_app_id": "A0123456789",
        "type": "event_callback",
        "event": {**event, "blocks": blocks, "channel_type": "channel"},
        "event_id": "Ev0123456789",
        "event_time": 1_700_000_000,
        "authorizations": [bot],
        "is_ext_shared_channel": False,
    }
    text = json.dumps(message, separators=separators)
    assert len(KEY.seal(text, clear_text(message), EVENT)) < len(text)


def salts(values: list[str]) -> list[bytes]:
    return [envelopes.decoded(json.loads(value)[SEALED])[9 : 9 + envelopes.SALT_BYTES] for value in values]


def test_a_salt_is_used_for_few_values_and_a_key_keeps_few_ciphers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelopes, "MOST_VALUES", 3)
    key = DataKey.new("T0ACME")
    used = salts([key.seal("1") for _ in range(7)])
    assert [used.count(salt) for salt in dict.fromkeys(used)] == [3, 3, 1]
    again = DataKey(key.id, key.workspace, key.raw)  # looked up again
    one, other = key.seal("1"), again.seal("1")
    assert len(set(salts([one, other]))) == 2
    assert key.open(json.loads(other)[SEALED]) == again.open(json.loads(one)[SEALED]) == "1"
    processes = [DataKey(KEY.id, KEY.workspace, KEY.raw) for _ in range(envelopes.MOST_KEPT * 2)]
    values = [json.loads(process.seal(str(nth)))[SEALED] for nth, process in enumerate(processes)]
    reader = DataKey(KEY.id, KEY.workspace, KEY.raw)
    for _ in range(2):
        assert [reader.open(value) for value in values] == [str(nth) for nth in range(len(values))]
    assert reader.ciphers.kept() <= envelopes.MOST_KEPT


FORKING = """
import os, random, signal, threading
from surelane_encryption.envelopes import DataKey, EVENT, VALUE, decoded
from surelane_encryption import packing

key = DataKey.new("T1")
large = random.Random(1).randbytes(4_000_000).hex()
begun = threading.Event()

def compress():
    while True:
        begun.set()
        packing.pack(large)

def salt(text):
    raw = decoded(__import__("json").loads(key.seal(text))["surelane.sealed"])
    assert key.open(raw) == text
    return raw[9:25].hex()

print(salt("1"), flush=True)
threading.Thread(target=compress, daemon=True).start()
begun.wait()
for _ in range(5):
    child = os.fork()
    if child == 0:
        signal.alarm(50)  # a child that waits for a lock of a thread it does not have would not end
        print(salt('"' + "long " * 1000 + '"'), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        os._exit(1)
print(salt("1"), flush=True)
os._exit(0)
"""


def test_a_forked_process_has_a_salt_of_its_own_and_meets_no_lock_of_a_thread() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    first, *children, last = ran.stdout.split()
    assert (ran.returncode, ran.stderr, len(set(children))) == (0, "", 5)
    assert first == last
    assert first not in children
