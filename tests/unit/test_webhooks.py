"""Signatures follow Standard Webhooks, and malformed secrets are refused."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surelane.errors import SettingsError
from surelane_service.service_settings import load_settings
from surelane_service.webhooks import SIGNATURE, TIMESTAMP, read_secrets, sign, verified
from surelane_worker.worker_settings import WorkerSettings

KEY, OTHER = b"k" * 32, b"o" * 32
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
NOW = 1_800_000_000


def test_the_rules_own_example_is_signed_as_they_say() -> None:
    headers = sign(
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        b'{"test": 2432232314}',
        read_secrets("a=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")["a"],
        1614265330,
    )
    assert headers[SIGNATURE] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_either_side_may_have_two_keys_and_a_timestamp_may_be_five_minutes_off() -> None:
    assert verified(sign("m", b"{}", [OTHER, KEY], NOW), b"{}", [KEY], NOW) == "m"
    assert verified(sign("m", b"{}", [KEY], NOW), b"{}", [OTHER, KEY], NOW) == "m"
    assert verified(sign("m", b"{}", [b""], NOW), b"{}", [], NOW) is None, "without keys none is right"
    for off, taken in ((-301, False), (-300, True), (300, True), (301, False)):
        assert (verified(sign("m", b"{}", [KEY], NOW + off), b"{}", [KEY], NOW) == "m") is taken
    headers = sign("m", b"{}", [KEY], NOW)
    wrong = sign("m", b"{}", [OTHER], NOW)[SIGNATURE]
    among = {**headers, SIGNATURE: f"v2,x {wrong} {headers[SIGNATURE]}"}
    assert verified(among, b"{}", [KEY], NOW) == "m", "a right one among wrong ones"
    among[SIGNATURE] = f"{wrong} " * 20 + headers[SIGNATURE]
    assert verified(among, b"{}", [KEY], NOW) is None, "but not among any number of them"


@pytest.mark.parametrize(
    ("header", "changed"),
    [
        *(("webhook-id", each) for each in ("", "other", "m\n", "m" * 128)),
        *((TIMESTAMP, each) for each in ("", str(NOW + 1), f"{NOW}.0", "٣", "9" * 30)),
        *((SIGNATURE, each) for each in ("", "v1,", "v1a,AAAA", "schlüssel")),
    ],
)
def test_whatever_is_changed_the_request_is_refused(header: str, changed: str) -> None:
    headers = sign("m", b"{}", [KEY], NOW)
    assert verified(headers, b"{}", [KEY], NOW) == "m"
    assert verified({**headers, header: changed}, b"{}", [KEY], NOW) is None


HEADERS = st.dictionaries(st.sampled_from(["webhook-id", TIMESTAMP, SIGNATURE]), st.text())


@given(st.binary(), st.binary(), HEADERS)
def test_hostile_headers_are_refused_without_an_error(body: bytes, signed: bytes, headers: Any) -> None:
    assert verified({**sign("m", signed, [KEY], NOW), **headers}, body + b"x" + signed, [KEY], NOW) is None


def test_secrets_are_read_by_name() -> None:
    other = f"whsec_{base64.b64encode(OTHER).decode()}"
    assert read_secrets(f" git={SECRET}|{other}, hub={other},") == {"git": [KEY, OTHER], "hub": [OTHER]}
    assert read_secrets("") == {}


@pytest.mark.parametrize(
    "text",
    [
        *(SECRET, "git", "git=", f"git={SECRET},git={SECRET}", f"a/b={SECRET}", f"git={SECRET}|"),
        *(f"git={SECRET.removeprefix('whsec_')}", "git=whsec_c2hvcnQ=", "git=whsec_!"),
    ],
)
def test_secrets_that_cannot_be_read_are_refused_and_never_shown(text: str) -> None:
    with pytest.raises(SettingsError, match="SURELANE_DISPATCH_SECRETS") as refused:
        load_settings(WorkerSettings, DATABASE_URL="postgresql://", SURELANE_DISPATCH_SECRETS=text)
    for part in (SECRET, SECRET.removeprefix("whsec_"), SECRET.rstrip("="), "c2hvcnQ"):
        assert part not in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"SURELANE_DISPATCH_URLS": "a"}, "write name=value"),
        ({"SURELANE_DISPATCH_URLS": "a=http://a.example/"}, "needs a URL with https"),
        ({"SURELANE_DISPATCH_URLS": "a=https://u:p@a.example/"}, "needs a URL with https"),
        ({"SURELANE_DISPATCH_URLS": "a=file:///etc/passwd"}, "needs a URL with https"),
        ({"SURELANE_DISPATCH_URLS": "b=https://b.example/"}, "no secret for b"),
        ({"SURELANE_PUBLIC_URL": ""}, "SURELANE_PUBLIC_URL is not set"),
        ({"SURELANE_DISPATCH_PRIVATE": "10.0.0.1/8"}, "SURELANE_DISPATCH_PRIVATE"),
        ({"SURELANE_DISPATCH_DEADLINE": "soon"}, "SURELANE_DISPATCH_DEADLINE"),
        ({"SURELANE_TRIGGER_KINDS": "git="}, "SURELANE_TRIGGER_KINDS"),
    ],
)
def test_settings_of_remote_agents_are_checked_at_start(wrong: dict[str, str], message: str) -> None:
    sound = {"DATABASE_URL": "postgresql://", "SURELANE_DISPATCH_URLS": "a=https://a.example/tasks"}
    sound |= {"SURELANE_DISPATCH_SECRETS": f"a={SECRET}", "SURELANE_PUBLIC_URL": "https://bot.example/"}
    settings = load_settings(WorkerSettings, **sound)
    assert settings.answer_url(7) == "https://bot.example/v1/dispatch/7"
    assert not any(secret in repr(settings) for secret in ("kkkk", "a2tr")), "a secret is not shown"
    with pytest.raises(SettingsError, match=message):
        load_settings(WorkerSettings, **sound | wrong)
