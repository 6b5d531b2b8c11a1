"""What operators are shown is bounded and linked; the search field reads what they copy, and no empty filter."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from surelane_operator.api.models import SearchQuery
from surelane_operator.cli.output import ago, end, middle
from surelane_operator.console.screen import LinkTemplates
from surelane_operator.mcp.tools import MOST, written
from surelane_operator.reads.filters import MessagePlace, parts_of, read_message

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "now"),
        (59.9, "59 s ago"),
        (61, "1 min ago"),
        (7200, "2 h ago"),
        (-90, "in 1 min"),
        (90_000, "1 d ago"),
        (40 * 86_400, r"2025-12-\d\d \S+"),
    ],
)
def test_times_are_said_by_their_distance_and_old_ones_as_dates(seconds: float, said: str) -> None:
    assert re.fullmatch(said, ago(NOW - timedelta(seconds=seconds), NOW))


@pytest.mark.parametrize("width", [1, 2, 3, 6, 10])
def test_cut_text_is_as_wide_as_it_may_be(width: int) -> None:
    for cut in (middle, end):
        assert len(cut("0123456789abcdef", width)) == width
        assert cut("short", 5) == "short"
    assert (middle("0123456789", 5), end("0123456789", 5)) == ("01…89", "…6789")


def nested(depth: int, width: int) -> Any:
    return "x" * 500 if depth == 0 else {f"{n}" * 200: nested(depth - 1, width) for n in range(width)}


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**6,
        list(range(10**5)),
        [["x" * 5000] * 300] * 3,
        {f"name {n}": n for n in range(10**5)},
        nested(3, 15),
        '"\\' * 10**5,
        "\u2028😀" * 10**5,
    ],
)
def test_an_answer_is_bounded_and_says_that_it_is_cut(value: Any) -> None:
    text = written({"payload": value})
    assert len(text) < MOST + 100
    assert "more" in text or "cut" in text


def test_a_small_answer_is_whole_and_a_large_one_says_what_is_missing() -> None:
    value = {"text": "x" * 4000, "none": None, "list": [1, {"a": [True]}], "ä": "😀"}
    assert json.loads(written(value)) == value
    shown = json.loads(written({"many": list(range(3000)), "short": "whole"}))
    assert (shown["many"][0], shown["many"][100], shown["many"][-1]) == (0, "… 2,800 more here", 2999)
    assert shown["short"] == "whole"


READ = {
    "https://acme.slack.com/archives/C024BE91L/p1767225600000100": MessagePlace(
        "C024BE91L", "1767225600.000100"
    ),
    "https://a.slack.com/archives/C024BE91L/p1767225600000100?thread_ts=1767225500.000200&cid=C024BE91L": MessagePlace(
        "C024BE91L", "1767225600.000100", thread="1767225500.000200"
    ),
    "https://app.slack.com/client/T1ACME/D024BE91L/thread/D024BE91L-1767225600.000100": MessagePlace(
        "D024BE91L", "1767225600.000100", team="T1ACME"
    ),
    "C024BE91L 1767225600.000100": MessagePlace("C024BE91L", "1767225600.000100"),
    "T1ACME:C024BE91L:1767225600.000100": MessagePlace("C024BE91L", "1767225600.000100", team="T1ACME"),
}


def test_links_quote_what_they_are_filled_with_and_a_message_is_read_from_what_people_copy() -> None:
    links = LinkTemplates(message="https://x/{team}/{channel}/{ts}", trace="https://y/{trace_id}")
    assert links.to_message("T&1", "C/1", "1.2") == "https://x/T%261/C%2F1/1.2"
    assert links.to_trace("ab") == "https://y/ab"
    assert links.to_message("T1", None, "1.2") is None
    assert LinkTemplates().to_trace("ab") is None
    for text, message in READ.items():
        assert read_message(text) == message
    for text in ("Ev024BE91L", "17", "order-4711", "https://example.com/", "http://[", "C1 12"):
        assert read_message(text) is None


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


@pytest.mark.parametrize("given", [{"tag": ""}, {"tag": ","}, {"kind": ""}, {"kind": "mail,,note"}])
def test_an_empty_part_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        SearchQuery.model_validate({"text": "milk", **given})


def test_parts_are_split_at_commas() -> None:
    found = SearchQuery.model_validate({"text": "milk", "kind": "mail,note", "tag": "a:1,2,b:3"}).filter()
    assert found.kinds == ["mail", "note"]
    assert found.tags == {"a": ["1,2"], "b": ["3"]}
