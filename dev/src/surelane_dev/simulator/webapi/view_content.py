"""Check a view's content as Slack does, and complete it with ids and defaults."""

import json
from collections.abc import Iterator
from secrets import token_hex

from surelane_dev.simulator.posting.events import new_id
from surelane_dev.simulator.views import View
from surelane_dev.simulator.webapi.call import ApiError, invalid_arguments
from surelane_dev.simulator.workspace.blocks import elements_of, identified
from surelane_dev.simulator.workspace.data_blocks import BadBlocksError
from surelane_dev.simulator.workspace.model import JSON
from surelane_dev.simulator.workspace.workspace import Workspace

LARGEST = 250_000
"""Most bytes of a view as JSON."""
MOST_BLOCKS = 100
MOST_OPTIONS = 100
LONGEST = {"title": 24, "submit": 24, "close": 24}
"""Most characters of the texts around a modal's content."""
LONGEST_METADATA = 3000
LONGEST_ID = 255
LONGEST_OPTION = 75
DEFAULTS: JSON = {
    "private_metadata": "",
    "callback_id": "",
    "clear_on_close": False,
    "notify_on_close": False,
    "external_id": "",
    "close": None,
    "submit": None,
}


def checked(view: JSON, kind: str) -> JSON:
    """Return a view's content with ids for its blocks and elements.

    Args:
        view: what the app gave.
        kind: ``modal`` or ``home``.

    Raises:
        ApiError: ``view_too_large``, or ``invalid_arguments`` with one line for each mistake.
    """
    if len(json.dumps(view).encode()) > LARGEST:
        raise ApiError("view_too_large")
    problems = list(_problems(view, kind))
    if problems:
        raise invalid_arguments(*problems)
    return DEFAULTS | view | {"blocks": identified(view["blocks"])}


def placed(
    workspace: Workspace, content: JSON, *, below: View | None = None, old: View | None = None
) -> JSON:
    """Return checked content as Slack sends it: with its place, its app and a new hash.

    Args:
        workspace: the workspace of the app.
        content: the content, checked.
        below: the modal over which it is pushed.
        old: the view that it replaces.
    """
    view_id = old.id if old else new_id("V")
    place = old or below
    return content | {
        "id": view_id,
        "team_id": workspace.team_id,
        "state": {"values": {}},
        "hash": f"{workspace.next_ts()}.{token_hex(4)}",
        "previous_view_id": old.content["previous_view_id"] if old else below.id if below else None,
        "root_view_id": place.content["root_view_id"] if place else view_id,
        "app_id": workspace.app_id,
        "app_installed_team_id": workspace.team_id,
        "bot_id": workspace.bot_id,
    }


def _problems(view: JSON, kind: str) -> Iterator[str]:
    required = ("type", "blocks") if kind == "home" else ("type", "title", "blocks")
    missing = [name for name in required if name not in view]
    yield from (f"missing required field: {name} [json-pointer:/view]" for name in missing)
    if missing:
        return
    if view["type"] != kind:
        yield f"expected a view of type {kind} [json-pointer:/view/type]"
    for name, longest in LONGEST.items():
        yield from _text_problems(view.get(name), name, longest)
    if len(str(view.get("private_metadata") or "")) > LONGEST_METADATA:
        yield f"must be less than {LONGEST_METADATA + 1} characters [json-pointer:/view/private_metadata]"
    for name in ("callback_id", "external_id"):
        if len(str(view.get(name) or "")) > LONGEST_ID:
            yield f"must be less than {LONGEST_ID + 1} characters [json-pointer:/view/{name}]"
    yield from _block_problems(view, kind)


def _text_problems(text: object, name: str, longest: int) -> Iterator[str]:
    if text is None:
        return
    if (
        not isinstance(text, dict)
        or text.get("type") != "plain_text"
        or not isinstance(text.get("text"), str)
    ):
        yield f"must be a plain_text object [json-pointer:/view/{name}]"
    elif len(text["text"]) > longest:
        yield f"must be less than {longest + 1} characters [json-pointer:/view/{name}/text]"


def _block_problems(view: JSON, kind: str) -> Iterator[str]:
    blocks = view["blocks"]
    if not isinstance(blocks, list) or not all(
        isinstance(block, dict) and isinstance(block.get("type"), str) for block in blocks
    ):
        yield "must be an array of blocks [json-pointer:/view/blocks]"
        return
    if len(blocks) > MOST_BLOCKS:
        yield f"no more than {MOST_BLOCKS} items allowed [json-pointer:/view/blocks]"
    seen: set[object] = set()
    for number, block in enumerate(blocks):
        at = f"[json-pointer:/view/blocks/{number}"
        block_id = block.get("block_id")
        if isinstance(block_id, str) and block_id in seen:
            yield f"`block_id` {block_id} is used twice {at}/block_id]"
        seen.add(block_id if isinstance(block_id, str) else None)
        if block["type"] == "input":
            yield from _input_problems(block, at)
            if kind == "modal" and not view.get("submit"):
                yield f"must define `submit` to use an `input` block {at}]"
    try:
        yield from _option_problems(identified(blocks))
    except BadBlocksError as error:
        yield f"{error} [json-pointer:/view/blocks]"


def _input_problems(block: JSON, at: str) -> Iterator[str]:
    for name in ("label", "element"):
        if not isinstance(block.get(name), dict):
            yield f"missing required field: {name} {at}]"


def _option_problems(blocks: list[JSON]) -> Iterator[str]:
    for block, element in elements_of(blocks):
        options = element.get("options", [])
        if len(options) > MOST_OPTIONS:
            yield f"no more than {MOST_OPTIONS} options allowed in block {block['block_id']}"
        if any(len(option["text"]["text"]) > LONGEST_OPTION for option in options):
            yield f"an option of block {block['block_id']} must be less than {LONGEST_OPTION + 1} characters"
