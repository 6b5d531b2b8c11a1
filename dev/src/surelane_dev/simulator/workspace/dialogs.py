"""Slack's rules for legacy dialogs, as data, and what a person may enter in one.

They are facts of https://docs.slack.dev/legacy/legacy-dialogs and https://docs.slack.dev/reference/methods/dialog.open,
and of slack-sdk's ``DialogBuilder``, read in November 2026.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from surelane_dev.simulator.workspace.model import JSON

FRAME = {"title": 24, "callback_id": 255, "submit_label": 24, "state": 3000}
"""The longest texts of a dialog."""
FIELDS = {"name": 300, "label": 48, "placeholder": 150, "hint": 150}
"""The longest texts of an element."""
VALUES = {"text": 150, "textarea": 3000}
"""The longest values of inputs."""
OPTION = {"label": 75, "value": 75}
SUBTYPES = ("email", "number", "tel", "url")
SOURCES = ("static", "users", "channels", "conversations", "external")
MOST_ELEMENTS, MOST_OPTIONS = 10, 100


@dataclass(frozen=True, slots=True)
class Dialog:
    """A dialog that a person has open."""

    content: JSON
    team: str
    channel: str
    """Where the person was as it opened."""


def dialog_problems(dialog: JSON) -> Iterator[str]:
    """Yield what Slack says of a dialog that it refuses."""
    yield from _texts(dialog, FRAME, ("title", "callback_id"), "The")
    if len(str(dialog.get("submit_label", "")).split()) > 1:
        yield "The field `submit_label` can only be one word"
    elements = dialog.get("elements")
    if not isinstance(elements, list) or not 1 <= len(elements) <= MOST_ELEMENTS:
        yield f"A dialog must have between 1 and {MOST_ELEMENTS} elements"
        return
    for number, element in enumerate(elements):
        where = f"Element {number}"
        if isinstance(element, dict):
            yield from _element(element, where)
        else:
            yield f"{where} must be an object"


def _element(element: JSON, where: str) -> Iterator[str]:
    yield from _texts(element, FIELDS, ("name", "label"), where)
    kind = element.get("type")
    if kind == "select":
        yield from _menu(element, where)
    elif isinstance(kind, str) and kind in VALUES:
        yield from _texts(element, {"value": VALUES[kind]}, (), where)
        lengths = [element.get("min_length", 0), element.get("max_length", VALUES[kind])]
        known = all(isinstance(each, int) and 0 <= each <= VALUES[kind] for each in lengths)
        if not known or lengths[0] > lengths[1]:
            yield f"{where} fields `min_length` and `max_length` must be between 0 and {VALUES[kind]}"
        if element.get("subtype") not in (None, *SUBTYPES):
            yield f"{where} field `subtype` must be one of {', '.join(SUBTYPES)}"
    else:
        yield f"{where} field `type` must be one of select, {', '.join(VALUES)}"


def _menu(element: JSON, where: str) -> Iterator[str]:
    source = element.get("data_source", "static")
    if source not in SOURCES:
        yield f"{where} field `data_source` must be one of {', '.join(SOURCES)}"
    elif source == "static":
        options = _options(element)
        if not 1 <= len(options) <= MOST_OPTIONS:
            yield f"{where} must have between 1 and {MOST_OPTIONS} options"
        for option in options:
            yield from _texts(option, OPTION, tuple(OPTION), f"{where} option")


def _options(element: JSON) -> list[JSON]:
    groups = element.get("option_groups") or [element]
    lists = [group.get("options") for group in groups if isinstance(group, dict)]
    found = [option for options in lists if isinstance(options, list) for option in options]
    return found if all(isinstance(option, dict) for option in found) else []


def _texts(part: JSON, longest: Mapping[str, int], needed: tuple[str, ...], where: str) -> Iterator[str]:
    for name, most in longest.items():
        value = part.get(name)
        if value is None and name not in needed:
            continue
        if not isinstance(value, str) or (name in needed and not value):
            yield f"{where} field `{name}` must be a text"
        elif len(value) > most:
            yield f"{where} field `{name}` cannot be longer than {most} characters"


def entered(dialog: JSON, values: Mapping[str, str | None]) -> tuple[JSON, dict[str, str]]:
    """Return what a dialog submits, and what Slack's client says of it under the inputs, by their names."""
    filled = {
        each["name"]: values.get(each["name"], each.get("value")) or None for each in dialog["elements"]
    }
    errors = {}
    for element in dialog["elements"]:
        if problem := _mistake(element, filled[element["name"]]):
            errors[element["name"]] = problem
    return filled, errors


def _mistake(element: JSON, value: str | None) -> str | None:
    if value is None:
        return None if element.get("optional") else "This field is required"
    if element["type"] == "select":
        offered = {option["value"] for option in _options(element)}
        static = element.get("data_source", "static") == "static"
        return "This is no option" if static and value not in offered else None
    longest = element.get("max_length", VALUES[element["type"]])
    if not element.get("min_length", 0) <= len(value) <= longest:
        return f"Between {element.get('min_length', 0)} and {longest} characters"
    return None
