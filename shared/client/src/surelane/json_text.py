"""Write values as the JSON text that SQL functions take."""

import json
import re
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

from surelane.errors import InvalidInput

_UNHOLDABLE = re.compile(r"(?:\\\\)+|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u(0000|[dD][89a-fA-F]..)")
"""Escaped backslashes, which plain text may follow, a pair of surrogates, or in a group what is to be replaced."""


def json_text(value: object) -> str:
    """Write a value as JSON; times as ISO 8601, pydantic models and dataclasses as objects.

    Raises:
        InvalidInput: it is not JSON, or has a time without a time zone.
    """
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(str(error)) from error


def check_text(text: str) -> None:
    """Make sure that ``jsonb`` can hold the texts in sound JSON. It is for JSON that PostgreSQL does not see itself.

    Raises:
        InvalidInput: one has U+0000 or half of a surrogate pair.
    """
    if "\\u0000" not in text and "\\ud" not in text and "\\uD" not in text:
        return
    if "\\u0000" in text.replace("\\\\", " "):  # an escaped backslash may stand before plain text
        raise InvalidInput("unsupported Unicode escape sequence: \\u0000 cannot be stored")
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            "unsupported Unicode escape sequence: half of a surrogate pair cannot be stored"
        ) from None


def read_json(text: str) -> Any:  # noqa: ANN401 - any JSON
    """Read JSON that the database stores. What Python cannot read becomes text: it must hide nothing beside it.

    PostgreSQL holds numbers of 131,072 digits and thousands of levels; Python reads 4,300 digits and 1,000 levels.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        return text
    except ValueError:
        return json.loads(text, parse_int=_whole)


def _whole(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:
        return digits


def mended(text: str) -> str:
    """Replace what ``jsonb`` cannot hold in JSON text, U+0000 and halves of surrogate pairs, by U+FFFD."""
    if "\\u0000" not in text and "\\ud" not in text and "\\uD" not in text:
        return text
    return _UNHOLDABLE.sub(lambda found: "\\ufffd" if found[1] else found[0], text)


def _plain(value: object) -> object:
    """Return a value as what JSON has: a model as its own type reads it again, so under its aliases."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        return value.isoformat()
    if not isinstance(value, type):
        if hasattr(value, "model_dump"):  # pydantic may not be installed
            return value.model_dump(mode="json", by_alias=True, round_trip=True)
        if is_dataclass(value):
            return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} is not JSON")
