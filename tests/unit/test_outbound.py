"""Which addresses are called, and that exports and logs say nothing secret."""

from datetime import UTC, datetime

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult

from surelane_service.logs import configure_logs
from surelane_service.outbound import LONGEST_PAUSE, PrivateAddressError, check, seconds_asked
from surelane_service.telemetry.setup import plain_url
from tests.processes import free_port


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "2002:7f00:1::", "::7f00:1", "64:ff9b::7f00:1", "fec0::1"),
    ],
)
def test_no_address_that_is_not_public_is_called(address: str) -> None:
    with pytest.raises(PrivateAddressError):
        check(address, [])
    for public in ("1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1"):
        check(public, [])


NO_PAUSES = (None, "", "soon", "-5", "nan", "inf", "1e9", "0x10", "5, 6", ".", "Mon, 99")


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        *(("600", 600), ("0", 0), (" 7 ", 7), ("1.5", 1.5)),
        *((each, 1) for each in NO_PAUSES),
        *((each, LONGEST_PAUSE) for each in ("1000000000", "9" * 5000)),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 600),
        ("Wed, 21 Oct 2015 07:17:59 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_PAUSE),
    ],
)
def test_a_pause_that_an_answer_asks_for_is_a_sound_number(
    asked: str | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", datetime(2015, 10, 21, 7, 18, tzinfo=UTC).timestamp)
    assert seconds_asked({} if asked is None else {"Retry-After": asked}) == seconds


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("https://hooks.slack.com/commands/T1/2/secret", "https://hooks.slack.com"),
        ("https://hooks.slack-gov.com/actions/T1/2/secret?x=y", "https://hooks.slack-gov.com"),
        ("https://user:secret@example.com/a?b=secret#secret", "https://example.com/a"),
        ("/slack/events?code=secret", "/slack/events"),
        ("https://slack.com/api/chat.postMessage", "https://slack.com/api/chat.postMessage"),
    ],
)
def test_urls_lose_what_is_secret(url: str, plain: str) -> None:
    assert plain_url(url) == plain


SECRET = "a-secret"


def test_collector_that_is_away_is_logged_without_its_url(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("test")
    exporter = OTLPSpanExporter(f"http://{SECRET}:{SECRET}@127.0.0.1:{free_port()}/{SECRET}", timeout=3)
    assert exporter.export([]) is SpanExportResult.FAILURE
    logged = capsys.readouterr().out
    assert "Transient error ConnectionError encountered while exporting" in logged
    assert SECRET not in logged
