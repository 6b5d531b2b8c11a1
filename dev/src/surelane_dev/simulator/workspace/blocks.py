"""Name the parts of blocks as Slack does, and find the elements in them."""

import re
from collections.abc import Iterable, Iterator
from secrets import token_hex
from typing import Any

from surelane_dev.simulator.workspace.data_blocks import BadBlocksError, check_data
from surelane_dev.simulator.workspace.model import JSON

WITH_ELEMENTS = frozenset({"actions", "context_actions"})
FEEDBACK = ("positive_button", "negative_button")
COUNTS = ("min_length", "max_length", "min_query_length", "max_selected_items")
BOUNDS = ("min_value", "max_value")
_NUMBER = re.compile(r"-?\d{1,30}(\.\d{1,30})?")


def identified(blocks: Iterable[JSON]) -> list[JSON]:
    """Return blocks with ids for themselves and their elements, where the app gave none.

    Raises:
        BadBlocksError: a block holds something else than elements, or data that Slack would refuse.
    """
    blocks = list(blocks)
    for block in blocks:
        check_data(block)
    return [_with_id(block, "block_id") | _named_elements(block) for block in blocks]


def elements_of(blocks: Iterable[JSON]) -> Iterator[tuple[JSON, JSON]]:
    """Yield each interactive element with its block."""
    for block in blocks:
        match block.get("type"):
            case "actions" | "context_actions":
                yield from ((block, element) for element in block.get("elements", ()))
            case "section" if isinstance(block.get("accessory"), dict):
                yield block, block["accessory"]
            case "input" if isinstance(block.get("element"), dict):
                yield block, block["element"]


def find_element(blocks: Iterable[JSON], action_id: str, block_id: str | None) -> tuple[JSON, JSON] | None:
    """Return an element with its block. Without a ``block_id``, take the first one of that ``action_id``."""
    return next(
        (
            (block, element)
            for block, element in elements_of(blocks)
            if element.get("action_id") == action_id and block_id in (None, block.get("block_id"))
        ),
        None,
    )


def _named_elements(block: JSON) -> JSON:
    if block["type"] in WITH_ELEMENTS:
        elements = block.get("elements")
        if not isinstance(elements, list):
            raise BadBlocksError(f"{block['type']} needs elements")
        return {"elements": [_with_id(_element(element), "action_id") for element in elements]}
    for name, needed in (("accessory", block["type"] == "section"), ("element", block["type"] == "input")):
        if needed and block.get(name) is not None:
            return {name: _with_id(_element(block[name]), "action_id")}
    return {}


def _element(element: Any) -> JSON:  # noqa: ANN401 - any JSON
    if not isinstance(element, dict) or not isinstance(element.get("type"), str):
        raise BadBlocksError("an element needs a type")
    if element["type"] == "feedback_buttons" and not all(_is_option(element.get(name)) for name in FEEDBACK):
        raise BadBlocksError("feedback_buttons need two buttons with a text and a value")
    for name in COUNTS:
        if not isinstance(element.get(name, 0), int):
            raise BadBlocksError(f"{name} must be a number")
    for name in BOUNDS:
        if not _NUMBER.fullmatch(str(element.get(name, 0))):
            raise BadBlocksError(f"{name} must be a number")
    _check_options(element)
    return element


def _check_options(element: JSON) -> None:
    groups = element.get("option_groups", [])
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise BadBlocksError("option_groups must be groups")
    lists = [element.get("options", []), element.get("initial_options", [])]
    lists += [group.get("options") for group in groups]
    if "initial_option" in element:
        lists.append([element["initial_option"]])
    if not all(isinstance(options, list) and all(map(_is_option, options)) for options in lists):
        raise BadBlocksError("each option needs a text and a value")


def _is_option(option: object) -> bool:
    if not isinstance(option, dict) or not isinstance(option.get("value"), str):
        return False
    text = option.get("text")
    return isinstance(text, dict) and isinstance(text.get("text"), str)


def _with_id(part: JSON, name: str) -> JSON:
    if not isinstance(part.get(name, ""), str):
        raise BadBlocksError(f"{name} must be a text")
    return part if part.get(name) else part | {name: token_hex(3)[:5]}
