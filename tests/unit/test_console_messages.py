"""The search field reads what people copy from Slack."""

import pytest

from surelane_operator.console.screen import Links
from surelane_operator.reads.filters import Message, parts_of, read_message

READ = {
    "https://acme.slack.com/archives/C024BE91L/p1767225600000100": Message("C024BE91L", "1767225600.000100"),
    "https://acme.slack.com/archives/C024BE91L/p1767225600000100?thread_ts=1767225500.000200&cid=C024BE91L": Message(
        "C024BE91L", "1767225600.000100", thread="1767225500.000200"
    ),
    "https://app.slack.com/client/T1ACME/D024BE91L/thread/D024BE91L-1767225600.000100": Message(
        "D024BE91L", "1767225600.000100", team="T1ACME"
    ),
    "C024BE91L 1767225600.000100": Message("C024BE91L", "1767225600.000100"),
    "T1ACME:C024BE91L:1767225600.000100": Message("C024BE91L", "1767225600.000100", team="T1ACME"),
}


def test_a_message_is_read_and_other_text_is_none() -> None:
    for text, message in READ.items():
        assert read_message(text) == message
    for text in ("Ev024BE91L", "17", "order-4711", "https://example.com/", "http://[", "C1 12"):
        assert read_message(text) is None


def test_links_quote_what_they_are_filled_with() -> None:
    links = Links(message="https://x/{team}/{channel}/{ts}", trace="https://y/{trace_id}")
    assert links.to_message("T&1", "C/1", "1.2") == "https://x/T%261/C%2F1/1.2"
    assert links.to_trace("ab") == "https://y/ab"
    assert links.to_message("T1", None, "1.2") is None
    assert Links().to_trace("ab") is None


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("T1:C1:1.1", ("T1", "C1", "1.1")),
        ("T1:D1", ("T1", "D1", None)),
        ("C1:1.1", (None, "C1", "1.1")),  # of a channel that organizations share
        ("mine", (None, None, None)),
    ],
)
def test_a_group_key_of_slack_has_parts(key: str, parts: tuple[str | None, ...]) -> None:
    assert parts_of(key) == parts
