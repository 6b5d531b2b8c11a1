"""JSON as PostgreSQL can hold it: text that ``jsonb`` refuses is mended, numbers that it inflates are refused.

``jsonb`` cannot hold U+0000 or half a surrogate pair in text: each becomes U+FFFD. It writes each number out in full
when it is read, so ``1e9999`` would take ten thousand bytes in every claim. Everything else is passed on as it came.

A sender chooses every byte here. Each step therefore takes time in proportion to the text: no regular expressions.
"""

import json
from dataclasses import dataclass
from typing import Any, NoReturn

MAX_DEPTH = 200
"""Arrays and objects within one another at most: far beyond what Slack sends, far below what parsers can follow."""

MAX_NUMBER = 400
"""Characters of one number at most."""

MAX_EXPONENT = 324
"""The largest exponent, of either sign: that of the smallest double, ``5e-324``."""

MAX_ZEROS = 64 * 1024
"""Digits that the exponents of one text may add together, once ``jsonb`` writes its numbers out."""

REPLACEMENT = "\\ufffd"


class NotJsonError(ValueError):
    """The text is not JSON, or not safe to read or to store. The message says why and never quotes the text."""


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON text, its value, and whether something in it had to be replaced."""

    text: str
    value: Any
    altered: bool = False


def read_json(text: str) -> Json:
    """Reads JSON text, replacing what PostgreSQL cannot hold. Of a repeated key, the last counts, as in ``jsonb``.

    Raises:
        NotJsonError: it is not JSON (``NaN`` and ``Infinity`` are not), is nested deeper than :data:`MAX_DEPTH`,
            or has a number beyond a double's range, :data:`MAX_NUMBER` or :data:`MAX_ZEROS`.
    """
    value = _decode(text)
    if "\\u0000" in text or "\\ud" in text or "\\uD" in text:
        mended = _mended(text)
        if mended != text:
            return Json(mended, _decode(mended), altered=True)
    return Json(text, value)


def _mended(text: str) -> str:
    """The text of sound JSON, without escapes that PostgreSQL cannot hold.

    In JSON a backslash always begins an escape. Between two escaped backslashes each one begins another escape, so
    cutting the text there first makes ``\\\\ud83d`` (text about an escape) and ``\\ud83d`` (an escape) differ.
    """
    return "\\\\".join(_without_unholdable(part) if "\\u" in part else part for part in text.split("\\\\"))


def _without_unholdable(part: str) -> str:
    """``part`` with each escaped U+0000 and each lone surrogate replaced. Each ``\\u`` in it begins an escape."""
    before, *escapes = part.split("\\u")
    kept = [before]
    high = ""  # the half of a pair that waits for its other half, which must follow at once
    for escape in escapes:
        code, rest = escape[:4].lower(), escape[4:]
        if high and "dc00" <= code <= "dfff":
            kept.append(f"\\u{high}\\u{escape}")
            high = ""
            continue
        if high:
            kept.append(REPLACEMENT)
            high = ""
        if "d800" <= code <= "dbff" and not rest:
            high = escape
        elif code == "0000" or "d800" <= code <= "dfff":
            kept.append(REPLACEMENT + rest)
        else:
            kept.append(f"\\u{escape}")
    if high:
        kept.append(REPLACEMENT)
    return "".join(kept)


class _Numbers:
    """Reads the numbers of one text that are no plain decimals, and counts the digits that their exponents add."""

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
    """A number with an exponent, or a long one. Not a ValueError: the text may be good JSON."""


def _plain(text: str) -> float:
    if len(text) > _ORDINARY_LENGTH or "e" in text or "E" in text:
        raise _UnusualNumberError
    return float(text)


def _refuse(_: str) -> NoReturn:
    raise NotJsonError("not JSON")


_INFINITY = float("inf")
_ORDINARY_LENGTH = 40
_DECODER = json.JSONDecoder(parse_float=_plain, parse_constant=_refuse)
"""Made once: making a decoder takes as long as decoding a small event."""


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
