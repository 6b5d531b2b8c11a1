"""Only requests that Slack signed recently pass, and no header or body causes another error."""

import hashlib
import hmac
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy
from slack_sdk.signature import Clock

from surelane_ingest.slack import SIGNATURE, TIMESTAMP, Signatures

NOW = 1_700_000_000
SECRET, OTHER = "the-new-secret", "the-old-secret"


class Stopped(Clock):
    """A clock that shows :data:`NOW`."""

    def now(self) -> float:
        return NOW


def sign(body: bytes, secret: str = SECRET, timestamp: str = str(NOW)) -> str:
    return "v0=" + hmac.new(secret.encode(), f"v0:{timestamp}:".encode() + body, hashlib.sha256).hexdigest()


def headers(timestamps: Sequence[str], signatures: Sequence[str]) -> CIMultiDictProxy[str]:
    given = [(TIMESTAMP, each) for each in timestamps] + [(SIGNATURE, each) for each in signatures]
    return CIMultiDictProxy(CIMultiDict(given))


SIGNATURES = Signatures([SECRET, OTHER], Stopped())


@given(st.text())
def test_a_body_signed_with_any_of_the_secrets_is_valid(text: str) -> None:
    body = text.encode(errors="replace")
    for secret in (SECRET, OTHER):
        assert SIGNATURES.valid(body, headers([str(NOW)], [sign(body, secret)]))
    for age in (299, -299, 301, -301):  # it is good for five minutes
        timestamp = str(NOW - age)
        signed = headers([timestamp], [sign(body, timestamp=timestamp)])
        assert SIGNATURES.valid(body, signed) is (abs(age) < 300)


def test_another_body_secret_or_time_and_missing_or_repeated_headers_are_refused() -> None:
    good, now = sign(b"{}"), str(NOW)
    assert not SIGNATURES.valid(b"{} ", headers([now], [good]))
    for times, signatures in (
        *(([str(NOW - 1)], [good]), ([now], [sign(b"{}", "guessed")])),
        *(([], [good]), ([now], []), ([now, now], [good]), ([now], [good, good])),
    ):
        assert not SIGNATURES.valid(b"{}", headers(times, signatures)), (times, signatures)


def test_a_garbled_timestamp_or_signature_is_refused_and_a_body_outside_utf8_even_when_signed() -> None:
    times = ("", "now", "1e9", "9" * 400, "9" * 5000, "-1", "nan", "\udcff", "\u0661", "0x10", "17_0", "\x00")
    for timestamp in times:
        assert not SIGNATURES.valid(b"{}", headers([timestamp], [sign(b"{}")])), timestamp
    for signature in ("", "v0=", "v1=" + "0" * 64, "v0=é", "v0=\udcff", "\x00", "v0=" + "0" * 100_000):
        assert not SIGNATURES.valid(b"{}", headers([str(NOW)], [signature])), signature
    assert not SIGNATURES.valid(b"\xff\xfe", headers([str(NOW)], [sign(b"\xff\xfe")]))


@given(st.binary(max_size=200), st.lists(st.text(), max_size=2), st.lists(st.text(), max_size=2))
def test_what_comes_unsigned_is_refused(body: bytes, timestamps: list[str], signatures: list[str]) -> None:
    assert SIGNATURES.valid(body, headers(timestamps, signatures)) is False
