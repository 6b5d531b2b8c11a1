"""Write values as the JSON text that SQL functions take."""

import json
from datetime import datetime

from surelane.errors import InvalidInput


def json_text(value: object) -> str:
    """Write a value as JSON; times as ISO 8601.

    Raises:
        InvalidInput: it is not JSON, or has a time without a time zone.
    """
    try:
        return json.dumps(value, default=_moment, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(str(error)) from error


def _moment(value: object) -> str:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")
