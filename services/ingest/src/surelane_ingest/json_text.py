"""JSON as PostgreSQL can hold it: what ``jsonb`` refuses is found before it is sent, and replaced where that
is possible.

``jsonb`` cannot hold U+0000 or half a surrogate pair in text: each becomes U+FFFD. Nor can it hold numbers
beyond its ``numeric`` type (``1e999999``), and it writes out in full those just inside it: numbers far beyond
what a double can hold become strings of the same characters. Everything else is passed on as it came, byte
for byte.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

MAX_DEPTH = 200
"""Arrays and objects within one another at most: far beyond what Slack sends, far below what parsers can follow. """

_DIGITS = 400
_NUMBER = re.compile(rf"-?\d{{1,{_DIGITS}}}(?:\.\d{{1,{_DIGITS}}})?(?:[eE][+-]?0*\d{{1,3}})?", re.ASCII)
_LONE_SURROGATE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_STRING_OR_NUMBER = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*', re.DOTALL | re.ASCII)
_ESCAPE = re.compile(
    r"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<unholdable>\\u0000|\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    r"|\\."
)


class NotJsonError(ValueError):
    """The text is not JSON, or is nested too deeply to be read safely. The message never quotes the text."""


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON text, its value, and whether something in it had to be replaced."""

    text: str
    value: Any
    altered: bool = False


def read_json(text: str) -> Json:
    """Reads JSON text, replacing what PostgreSQL cannot hold. Of a repeated key, the last counts, as in ``jsonb``.

    Raises:
        NotJsonError: it is not JSON (``NaN`` and ``Infinity`` are not), or is nested deeper than
            :data:`MAX_DEPTH`.
    """
    try:
        value = _decode(text)
    except _UnholdableNumberError:
        return _altered(text)
    if "\\u0000" in text or (("\\ud" in text or "\\uD" in text) and _LONE_SURROGATE.search(text)):
        return _altered(text)
    return Json(text, value)


def _altered(text: str) -> Json:
    holdable = _STRING_OR_NUMBER.sub(_holdable, text)
    return Json(holdable, _decode(holdable), altered=holdable != text)


def _holdable(token: re.Match[str]) -> str:
    text = token[0]
    if text.startswith('"'):
        return _ESCAPE.sub(lambda escape: "\\ufffd" if escape["unholdable"] else escape[0], text)
    return text if _NUMBER.fullmatch(text) else f'"{text}"'


def _decode(text: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(type(error).__name__) from None
    # No text is nested deeper than it has brackets, and most have few: counting them is nearly free.
    if text.count("{") + text.count("[") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise NotJsonError("nested too deeply")
    return value


def _deeper_than(value: Any, limit: int) -> bool:  # noqa: ANN401 - any JSON value
    level = [value]
    for _ in range(limit):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return any(isinstance(node, dict | list) for node in level)


def _children(node: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()


class _UnholdableNumberError(Exception):
    """A number that must become a string. Not a ValueError: the text is good JSON."""


def _int(text: str) -> int:
    if len(text) > _DIGITS:
        raise _UnholdableNumberError
    return int(text)


def _float(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise _UnholdableNumberError
    return float(text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


_DECODER = json.JSONDecoder(parse_int=_int, parse_float=_float, parse_constant=_refuse)
