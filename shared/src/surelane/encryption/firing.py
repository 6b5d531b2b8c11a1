"""The encrypted payloads of named schedules: each firing adds its name and time to them in the clear."""

from collections.abc import Mapping
from typing import Any

_ADDED = ("cron", "scheduled_at")
"""What SQL adds to the payload of a schedule's job. Nothing else that stays in the clear has such a name."""


def with_firing(opened: Any, stored: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    """Return a decrypted payload with what a firing added beside the encrypted one."""
    added = {name: stored[name] for name in _ADDED if name in stored}
    return {**opened, **added} if added and isinstance(opened, dict) else opened


def is_firing(body: str) -> bool:
    """Return whether the JSON text of a stored event may have what a firing added."""
    return '"scheduled_at"' in body
