"""Read JSON that PostgreSQL can hold: replace text that ``jsonb`` refuses, and refuse numbers that it inflates.

``jsonb`` cannot hold U+0000 or half of a surrogate pair in text: each becomes U+FFFD. ``jsonb`` writes numbers out in
full, so ``1e9999`` would take ten thousand bytes in every claim. Everything else stays byte for byte as it came.

A sender chooses every byte here. Each step therefore takes time in proportion to the text: no expression backtracks.
"""

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from surelane.json_text import mended

MAX_DEPTH = 200
"""The deepest nesting of arrays and objects: far more than Slack sends, far less than parsers can follow."""

MAX_NUMBER = 400
"""The most characters of one decimal."""

MAX_EXPONENT = 324
"""The largest exponent, of either sign: that of the smallest double, ``5e-324``."""

MAX_ZEROS = 64 * 1024
"""The most digits that the exponents of one text may add, once ``jsonb`` writes its numbers out."""


class NotJsonError(ValueError):
    """The text is not JSON, or not safe to read or to store. The message gives the reason and never quotes the text."""


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON text, its value, and whether something in it had to be replaced."""

    text: str
    value: Any
    altered: bool = False


def read_json(text: str) -> Json:
    """Read JSON text, and replace what PostgreSQL cannot hold. Of a repeated key the last counts, as in ``jsonb``.

    Raises:
        NotJsonError: it is not JSON (nor are ``NaN`` and ``Infinity``), is nested deeper than :data:`MAX_DEPTH`, or
            has a number beyond a double's range, :data:`MAX_NUMBER` or :data:`MAX_ZEROS`.
    """
    value = _decode(text)
    sound = mended(text)
    return Json(text, value) if sound == text else Json(sound, _decode(sound), altered=True)


class _Numbers:
    """Read the unusual numbers of one text, and count the digits that their exponents add."""

    __slots__ = ("_zeros",)

    def __init__(self) -> None:
        self._zeros = 0

    def read(self, text: str) -> float:
        if len(text) > MAX_NUMBER:
            raise NotJsonError("a number is too long")
        value = float(text)
        exponent = abs(int(text.lower().partition("e")[2] or "0"))
        if exponent > MAX_EXPONENT or value in (_INFINITY, -_INFINITY):
            raise NotJsonError("a number is out of range")
        self._zeros += exponent
        if self._zeros > MAX_ZEROS:
            raise NotJsonError("its numbers take too many digits")
        return value


class _UnusualNumberError(Exception):
    """A number with an exponent, or a long one. It is no ValueError: the text may be good JSON."""


def _plain(text: str) -> float:
    if len(text) > _ORDINARY_LENGTH or "e" in text or "E" in text:
        raise _UnusualNumberError
    return float(text)


def _refuse(_: str) -> NoReturn:
    raise NotJsonError("not JSON")


_INFINITY = float("inf")
_ORDINARY_LENGTH = 40
_DECODER = json.JSONDecoder(parse_float=_plain, parse_constant=_refuse)
"""Made once, because making a decoder takes as long as decoding a small event."""


def _decode(text: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        try:
            value = _DECODER.decode(text)
        except _UnusualNumberError:
            value = json.JSONDecoder(parse_float=_Numbers().read, parse_constant=_refuse).decode(text)
    except NotJsonError:
        raise
    except json.JSONDecodeError:
        raise NotJsonError("not JSON") from None
    except RecursionError:
        raise NotJsonError("nested too deeply") from None
    except ValueError:  # Python reads no whole number of more than 4,300 digits
        raise NotJsonError("a number is too long") from None
    # Counting brackets is nearly free, and most texts have too few of them to be nested too deeply.
    if text.count("{") + text.count("[") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise NotJsonError("nested too deeply")
    return value


def _deeper_than(value: Any, limit: int) -> bool:  # noqa: ANN401 - any JSON value
    level = [value]
    for _ in range(limit):
        nodes = [node for node in level if isinstance(node, dict | list)]
        level = [child for node in nodes for child in (node.values() if isinstance(node, dict) else node)]
    return any(isinstance(node, dict | list) for node in level)
