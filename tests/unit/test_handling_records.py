"""Results and errors are stored in a form that PostgreSQL can hold."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surelane.events import Event
from surelane.json_text import mended
from surelane_worker.handling import records
from surelane_worker.handling.records import ResultError, error_record, result_text

NOW = datetime(2025, 1, 1, tzinfo=UTC)
EVENT = Event(7, "a", NOW, 2, 3, NOW, "{}")


def fail_at_length() -> None:
    raise ValueError("x" * 5000)


def test_result_is_kept_as_json_and_text_that_only_looks_like_nul_as_it_is() -> None:
    assert json.loads(result_text({"a": [1, "é", None]}) or "") == {"a": [1, "é", None]}
    assert result_text(None) is None
    endless: list[object] = []
    endless.append(endless)
    for result in (object(), {1, 2}, float("nan"), {("a", "b"): 1}, "x" * 1_000_001, endless):
        with pytest.raises(ResultError):
            result_text(result)
    assert json.loads(mended(json.dumps("\\u0000 \\ud800"))) == "\\u0000 \\ud800"
    assert json.loads(mended(json.dumps("😀\0"))) == "😀\ufffd"


ANY_TEXT = st.text(st.characters() | st.characters(categories=["Cs"]) | st.just("\0"), max_size=10)
"""With halves of surrogate pairs and NUL, which PostgreSQL cannot hold."""


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | ANY_TEXT,
        lambda s: st.lists(s, max_size=3) | st.dictionaries(ANY_TEXT, s, max_size=3),
        max_leaves=10,
    )
)
def test_mended_text_has_neither_nul_nor_surrogates(value: object) -> None:
    text = mended(json.dumps(value))
    assert "\\u0000" not in text.replace("\\\\", "")
    json.dumps(json.loads(text), ensure_ascii=False).encode()  # refuses half of a surrogate pair


def test_error_record_says_what_when_who_and_where_and_at_first_the_end_of_the_traceback() -> None:
    with pytest.raises(ValueError, match="x") as raised:
        fail_at_length()
    record = error_record(EVENT, "worker-1", raised.value, traceparent="00-1-2-01")
    said = [record[name] for name in ("type", "worker", "attempt", "traceparent")]
    assert said == ["ValueError", "worker-1", 2, "00-1-2-01"]
    assert (len(record["message"]), len(record["traceback"])) == (
        records.LONGEST_MESSAGE,
        records.LONGEST_TRACEBACK,
    )
    assert datetime.fromisoformat(record["at"]).tzinfo is not None
    assert __file__ in record["where"]
    assert "traceback" not in error_record(replace(EVENT, attempts=4), "worker-1", raised.value)
    with pytest.raises(ValueError, match="Expecting") as raised:
        json.loads("{")
    record = error_record(EVENT, "worker-1", raised.value)
    assert record["traceback"].startswith("Traceback")
    assert "Expecting property name" in record["traceback"].splitlines()[-1]
    assert record["where"].startswith(f"{__file__}:"), "the team's own line"
