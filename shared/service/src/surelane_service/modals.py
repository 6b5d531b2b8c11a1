"""Replace a submitted modal: while its handler works, and with what the handler says later."""

from collections.abc import Mapping
from typing import Any

SETTABLE = (
    *("type", "title", "submit", "close", "blocks", "callback_id", "external_id", "private_metadata"),
    *("clear_on_close", "notify_on_close"),
)
"""The parts of a view that an app may set. Slack adds others, such as its id."""


def replaced(view: Mapping[str, Any], **other: Any) -> dict[str, Any]:  # noqa: ANN401 - parts of a view
    """Return a modal that takes another one's place, with ``other`` parts; ``None`` leaves a part out."""
    parts = {name: view.get(name) for name in SETTABLE} | other
    return {name: part for name, part in parts.items() if part not in (None, "")}


def said(view: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return a modal that says a sentence in another one's place, and asks for nothing."""
    section = {"type": "section", "text": {"type": "plain_text", "text": text}}
    return replaced(view, blocks=[section], submit=None)
