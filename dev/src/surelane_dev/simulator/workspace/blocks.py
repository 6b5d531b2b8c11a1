"""Check blocks and views, name their parts as Slack does, and find the elements in them."""

from collections.abc import Iterable, Iterator, Sequence
from secrets import token_hex
from typing import Any

from surelane_dev.simulator.workspace.block_kit import BLOCKS, MOST_BLOCKS, VIEWS
from surelane_dev.simulator.workspace.block_rules import said, string, twice
from surelane_dev.simulator.workspace.data_blocks import BadBlocksError, check_data
from surelane_dev.simulator.workspace.model import JSON

WITH_ELEMENTS = frozenset({"actions", "context_actions"})
_BLOCK_ID = string(255)


def block_problems(blocks: Sequence[Any], surface: str, at: str = "/blocks") -> Iterator[str]:
    """Yield what is wrong with the blocks of a ``message``, a ``modal`` or a ``home``. ``at``: their own place."""
    if len(blocks) > MOST_BLOCKS[surface]:
        yield said(f"no more than {MOST_BLOCKS[surface]} items allowed", at)
    for number, block in enumerate(blocks):
        yield from _problems(block, surface, f"{at}/{number}")
    yield from twice("block_id", "block", blocks, at)


def view_problems(view: JSON, kind: str) -> Iterator[str]:
    """Yield what is wrong with a view that should be a ``modal`` or a ``home``."""
    blocks = view.get("blocks")
    if view.get("type") is None:
        yield said("missing required field: type", "/view")
        return
    if view["type"] != kind:
        yield said(f"expected a view of type {kind}", "/view/type")
        return
    yield from VIEWS[kind](view, "/view", ("type",))
    if blocks is None:
        return
    if not isinstance(blocks, list):
        yield said("must provide an array", "/view/blocks")
        return
    yield from block_problems(blocks, kind, "/view/blocks")
    if kind == "modal" and not view.get("submit"):
        for number, block in enumerate(blocks):
            if isinstance(block, dict) and block.get("type") == "input":
                yield said("must define `submit` to use an `input` block", f"/view/blocks/{number}")


def _problems(block: Any, surface: str, at: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
    if not isinstance(block, dict):
        yield said("must provide an object", at)
        return
    kind = BLOCKS.get(str(block.get("type")))
    if block.get("type") is None:
        yield said("missing required field: type", at)
    elif kind is None or surface not in kind.surfaces:
        yield said(f"unsupported type: {block['type']}", f"{at}/type")
    else:
        yield from kind(block, at, ("type", "block_id"))
        if block.get("block_id") is not None:
            yield from _BLOCK_ID(block["block_id"], f"{at}/block_id")
        elements = block.get("elements")
        if block["type"] in WITH_ELEMENTS and isinstance(elements, list):
            yield from twice("action_id", "element", elements, f"{at}/elements")


def identified(blocks: Sequence[Any], surface: str = "message", at: str = "/blocks") -> list[JSON]:
    """Return blocks with ids for themselves and their elements, or raise BadBlocksError: Slack would refuse them."""
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
    named = (found for found in elements_of(blocks) if found[1].get("action_id") == action_id)
    return next((found for found in named if block_id in (None, found[0].get("block_id"))), None)


def _named_elements(block: JSON) -> JSON:
    if block["type"] in WITH_ELEMENTS:
        return {"elements": [_with_id(element, "action_id") for element in block["elements"]]}
    for name, needed in (("accessory", block["type"] == "section"), ("element", block["type"] == "input")):
        if needed and block.get(name) is not None:
            return {name: _with_id(block[name], "action_id")}
    return {}


def _with_id(part: JSON, name: str) -> JSON:
    return part if part.get(name) else part | {name: token_hex(3)[:5]}
