"""Name the parts of blocks as Slack does, and find the elements in them."""

from collections.abc import Iterable, Iterator, Sequence
from secrets import token_hex
from typing import Any

from surelane_dev.simulator.workspace.block_check import block_problems
from surelane_dev.simulator.workspace.data_blocks import BadBlocksError, check_data
from surelane_dev.simulator.workspace.model import JSON

WITH_ELEMENTS = frozenset({"actions", "context_actions"})


def identified(blocks: Sequence[Any], surface: str = "message", at: str = "/blocks") -> list[JSON]:
    """Return blocks with ids for themselves and their elements, where the app gave none.

    Args:
        blocks: the blocks.
        surface: ``message``, ``modal`` or ``home``.
        at: their own place, as a JSON pointer.

    Raises:
        BadBlocksError: Slack would refuse them.
    """
    if problems := list(block_problems(blocks, surface, at)):
        raise BadBlocksError(*problems)
    for number, block in enumerate(blocks):
        check_data(block, f"{at}/{number}")
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
        return {"elements": [_with_id(element, "action_id") for element in block["elements"]]}
    for name, needed in (("accessory", block["type"] == "section"), ("element", block["type"] == "input")):
        if needed and block.get(name) is not None:
            return {name: _with_id(block[name], "action_id")}
    return {}


def _with_id(part: JSON, name: str) -> JSON:
    return part if part.get(name) else part | {name: token_hex(3)[:5]}
