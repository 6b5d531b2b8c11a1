"""A tool's answer has a bounded size, also that of a huge event."""

import json
from typing import Any

import pytest

from surelane_operator.mcp.tools import MOST, written


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
