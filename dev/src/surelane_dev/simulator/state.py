"""Put what a person entered into Slack's form, and check it as Slack's clients do before they submit it.

A person enters one text, or several: a text, the values of options, or the ids of users and channels. A person may
choose only among the options that the app gave to a menu.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import urlsplit

from surelane_dev.simulator.posting.events import rich_text
from surelane_dev.simulator.workspace.blocks import elements_of
from surelane_dev.simulator.workspace.model import JSON

TEXTS = frozenset({"plain_text_input", "email_text_input", "url_text_input", "number_input"})
OF_TEXT = {"datepicker": "selected_date", "timepicker": "selected_time"}
OF_ID = {f"{name}s_select": f"selected_{name}" for name in ("user", "channel", "conversation")}
OF_IDS = {f"multi_{kind}": f"{name}s" for kind, name in OF_ID.items()}
OF_OPTION = frozenset({"static_select", "external_select", "radio_buttons", "overflow"})
OF_OPTIONS = frozenset({"multi_static_select", "multi_external_select", "checkboxes"})
STATELESS = frozenset({"button", "overflow", "feedback_buttons", "icon_button", "image", "workflow_button"})

OFFERED = 200
"""The number of menus whose options are kept; those of older ones go."""

REQUIRED = "Please complete this required field."
EMAIL = "Please enter a valid email address."
URL = "Please enter a valid URL."
NUMBER = "Please enter a number."
_ADDRESS = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")

Entered = Mapping[str, Mapping[str, Any]]
"""What a person entered, by ``block_id`` and ``action_id``: a text, a list of texts, or Slack's own form."""
Options = Callable[[str, str], Mapping[str, JSON]]
"""Returns the options that an external menu was given, by their values."""


class NotOfferedError(ValueError):
    """The person chose what the element does not offer."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The value of one element in Slack's form, and whether it is empty."""

    value: JSON
    empty: bool


def state_of(blocks: list[JSON], entered: Entered, offered: Options) -> JSON:
    """Return ``state``: the value of each element, or its initial one. An option that its menu lacks is refused."""
    values: dict[str, JSON] = {}
    for block, element in elements_of(blocks):
        if element["type"] not in STATELESS:
            block_id, action_id = block["block_id"], element["action_id"]
            chosen = choice(element, entered.get(block_id, {}).get(action_id), offered(block_id, action_id))
            values.setdefault(block_id, {})[action_id] = chosen.value
    return {"values": values}


def choice(element: JSON, entered: object, offered: Mapping[str, JSON]) -> Chosen:
    """Return an element's value. What is ``None`` was not touched, and has its initial value."""
    kind = str(element["type"])
    if isinstance(entered, dict):
        rest = [value for name, value in entered.items() if name != "type"]
        return Chosen({"type": kind} | entered, not any(rest))
    texts = _texts(_initial(element) if entered is None else entered)
    first = texts[0] if texts else None
    if kind in OF_OPTION or kind in OF_OPTIONS:
        options = {**options_of(element), **offered}
        for text in texts:
            if text not in options:
                raise NotOfferedError(f"{element['action_id']} does not offer {text}")
        if kind in OF_OPTIONS:
            return Chosen({"type": kind, "selected_options": [options[text] for text in texts]}, not texts)
        return Chosen({"type": kind, "selected_option": options[first] if first else None}, not texts)
    if kind in OF_IDS:
        return Chosen({"type": kind, OF_IDS[kind]: texts}, not texts)
    if kind == "datetimepicker":
        return Chosen({"type": kind, "selected_date_time": int(first) if first else None}, not first)
    if kind == "rich_text_input":
        value = rich_text(first)[0] if first else None
        return Chosen({"type": kind, "rich_text_value": value}, not first)
    name = "value" if kind in TEXTS else OF_ID.get(kind) or OF_TEXT.get(kind) or "value"
    return Chosen({"type": kind, name: first or None}, not first)


def options_of(element: JSON) -> dict[str, JSON]:
    """Return the options that an element has in its blocks, by their values."""
    groups = element.get("option_groups") or ()
    options = [*(element.get("options") or ()), *(option for group in groups for option in group["options"])]
    options += [option for option in _initial_options(element) if option not in options]
    return {str(option.get("value")): option for option in options}


def mistakes(blocks: list[JSON], state: JSON) -> dict[str, str]:
    """Return what Slack's client shows under its inputs in place of submitting them, by ``block_id``."""
    found: dict[str, str] = {}
    for block, element in elements_of(blocks):
        if block["type"] != "input":
            continue
        chosen = choice(element, state["values"][block["block_id"]][element["action_id"]], {})
        if chosen.empty:
            if not block.get("optional"):
                found[block["block_id"]] = REQUIRED
        elif (mistake := next(_mistakes(element, chosen.value), None)) is not None:
            found[block["block_id"]] = mistake
    return found


def _mistakes(element: JSON, value: JSON) -> Iterator[str]:
    text = str(value.get("value") or "")
    match element["type"]:
        case "email_text_input" if not _ADDRESS.fullmatch(text):
            yield EMAIL
        case "url_text_input" if not (urlsplit(text).scheme and urlsplit(text).netloc):
            yield URL
        case "number_input":
            yield from _number_mistakes(element, text)
        case "plain_text_input":
            if len(text) < int(element.get("min_length") or 0):
                yield f"Please enter at least {element['min_length']} characters."
            if len(text) > int(element.get("max_length") or 3000):
                yield f"Please enter at most {element.get('max_length') or 3000} characters."
    most = element.get("max_selected_items")
    if most and any(isinstance(each, list) and len(each) > most for each in value.values()):
        yield f"Please choose at most {most}."


def _number_mistakes(element: JSON, text: str) -> Iterator[str]:
    try:
        number = Decimal(text)
    except InvalidOperation:
        yield NUMBER
        return
    if not number.is_finite() or (
        not element.get("is_decimal_allowed") and number != number.to_integral_value()
    ):
        yield NUMBER
    elif element.get("min_value") is not None and number < Decimal(str(element["min_value"])):
        yield f"Please enter a number not below {element['min_value']}."
    elif element.get("max_value") is not None and number > Decimal(str(element["max_value"])):
        yield f"Please enter a number not above {element['max_value']}."


def _initial(element: JSON) -> object:
    options = [str(option.get("value")) for option in _initial_options(element)]
    if options:
        return options
    names = (*OF_ID.values(), *OF_IDS.values(), *OF_TEXT.values(), "selected_date_time", "selected_value")
    for name in names:
        if (initial := element.get(name.replace("selected", "initial", 1))) is not None:
            return initial
    return None


def _initial_options(element: JSON) -> list[JSON]:
    one = element.get("initial_option")
    return [*([one] if one else []), *(element.get("initial_options") or ())]


def _texts(entered: object) -> list[str]:
    items = entered if isinstance(entered, list) else [entered]
    return [str(item) for item in items if item not in (None, "")]


class Offered:
    """The options of each menu by their values. A menu lies in a message or a view, the *place*."""

    def __init__(self) -> None:
        self._options: OrderedDict[tuple[str, str, str], dict[str, JSON]] = OrderedDict()

    def add(self, place: str, element: JSON, options: Iterable[JSON]) -> None:
        """Add options to a menu's earlier ones."""
        key = (place, element["block_id"], element["action_id"])
        known = self._options.pop(key, {})
        self._options[key] = known | {str(option["value"]): option for option in options}
        while len(self._options) > OFFERED:
            self._options.popitem(last=False)

    def of(self, place: str) -> Options:
        """Return the function that looks up the options of a menu in this place."""
        return lambda block_id, action_id: self._options.get((place, block_id, action_id), {})
