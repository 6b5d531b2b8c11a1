"""JSON that PostgreSQL can hold is passed on unchanged; other JSON is repaired."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surelane_ingest.json_text import MAX_DEPTH, NotJsonError, read_json

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


def holdable(text: str) -> bool:
    return "\x00" not in text and not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


@given(VALUES, st.booleans())
def test_what_postgresql_can_hold_is_passed_on_as_it_came(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    if "\\u0000" not in text:
        parsed = read_json(text)
        assert (parsed.text, parsed.value, parsed.altered) == (text, value, False)


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        (r'"a\u0000b"', r'"a\ufffdb"'),
        (r'{"k\u0000": 1}', r'{"k\ufffd": 1}'),
        (r'"\ud83d"', r'"\ufffd"'),
        (r'"\uDE00"', r'"\ufffd"'),
        (r'"\ud83d\ud83d\ude00"', r'"\ufffd\ud83d\ude00"'),
        (r'"\ude00\ud83d"', r'"\ufffd\ufffd"'),
        (r'"\\\u0000"', r'"\\\ufffd"'),
        (r'["\u0000 \" 1e999999", 2]', r'["\ufffd \" 1e999999", 2]'),
        (r'"\\\ud800"', r'"\\\ufffd"'),
        (r'"\ud83dx\ude00"', r'"\ufffdx\ufffd"'),
        (r'"\ud83d\\ude00"', r'"\ufffd\\ude00"'),
        (r'{"a": "\ud800", "a": 1}', r'{"a": "\ufffd", "a": 1}'),
    ],
)
def test_what_postgresql_cannot_hold_is_replaced(sent: str, stored: str) -> None:
    parsed = read_json(sent)
    assert (parsed.text, parsed.altered) == (stored, True)
    assert parsed.value == json.loads(stored)


@pytest.mark.parametrize(
    "text",
    [
        *(r'"\\u0000"', r'"\\ud83d"', r'"\ud83d\ude00"', r'"\uD83D\uDE00 \\ude00"', "1e308", "0.1", "-0.0"),
        *("[1.5e10, -2E-7, 5e-324]", "1.7976931348623157e308", "9" * 4000),
    ],
)
def test_what_only_looks_unholdable_is_left_alone(text: str) -> None:
    assert read_json(text).text == text
    assert not read_json(text).altered


PARTS = ("\\u0000", "\\ud83d", "\\ude00", "\\\\", "\\n", '\\"', "u0000", "\\ud83d\\ude00", "x")


@given(st.lists(st.sampled_from(PARTS)))
def test_any_mixture_of_escapes_ends_up_holdable(parts: list[str]) -> None:
    parsed = read_json('"' + "".join(parts) + '"')
    assert holdable(parsed.value)
    assert json.loads(parsed.text) == parsed.value


@pytest.mark.parametrize(
    "text",
    ["", " ", "nonsense", "{", "NaN", "[Infinity]", "-Infinity", "{} {}", "\ufeff{}", "{'a': 1}", '"\x00"',
     '"\t"', "01", "+1", '"\\x"', '"\\u12"', "1.", "[1,]", '"', "[" * 100_000, '{"a":' * 100_000],
)  # fmt: skip
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(NotJsonError):
        read_json(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1e309", "out of range"),
        ("-1.5E+400000", "out of range"),
        ("1e-325", "out of range"),
        ("0e-9999", "out of range"),
        ("1" + "0" * 20 + ".0e300", "out of range"),
        ("1.5e" + "0" * 500 + "1", "too long"),
        ("0." + "1" * 400, "too long"),
        ("[" + "1e300," * 300 + "1]", "too many digits"),
        ("9" * 5000, "too long"),
    ],
)
def test_numbers_that_jsonb_inflates_are_refused(text: str, why: str) -> None:
    with pytest.raises(NotJsonError, match=why):
        read_json(text)


def test_nesting_is_bounded_and_of_a_repeated_key_the_last_counts_though_the_text_keeps_both() -> None:
    def nested(depth: int) -> str:
        return "[" * depth + "]" * depth

    assert read_json(nested(MAX_DEPTH)).text == nested(MAX_DEPTH)
    assert read_json('"' + "[{" * 10_000 + '"').value
    assert read_json("[" + "[],{}," * 1000 + "[]]").value
    with pytest.raises(NotJsonError):
        read_json(nested(MAX_DEPTH + 1))
    with pytest.raises(NotJsonError):
        read_json('{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1))
    parsed = read_json('{"a": 1, "a": 2}')
    assert parsed.value == {"a": 2}
    assert parsed.text == '{"a": 1, "a": 2}'


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parsed = read_json(text)
    except NotJsonError as error:
        assert len(str(error)) < 50  # noqa: PT017 - quotes nothing of the text; there need not be an error
    else:
        assert json.loads(parsed.text) == parsed.value
