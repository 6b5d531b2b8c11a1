"""Find what Slack would refuse in blocks and views, in Slack's words.

Each problem ends with the place of the mistake, as ``[json-pointer:/blocks/0/text/text]``.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from surelane_dev.simulator.workspace.block_kit import (
    BLOCKS,
    ELEMENTS,
    MOST_BLOCKS,
    SHAPES,
    VIEWS,
    Anything,
    Array,
    Decimal,
    Fields,
    Flag,
    Named,
    Nested,
    Part,
    Rule,
    String,
    Text,
    Whole,
)
from surelane_dev.simulator.workspace.model import JSON

_NUMBER = re.compile(r"-?\d{1,30}(\.\d{1,30})?")
_BLOCK_ID = String(255)
_TEXT_FIELDS = {"plain_text": "emoji", "mrkdwn": "verbatim"}


def block_problems(blocks: Sequence[Any], surface: str, at: str = "/blocks") -> Iterator[str]:
    """Yield what is wrong with the blocks of a ``message``, a ``modal`` or a ``home``.

    Args:
        blocks: the blocks.
        surface: where they are shown.
        at: their own place, as a JSON pointer.
    """
    if len(blocks) > MOST_BLOCKS[surface]:
        yield _said(f"no more than {MOST_BLOCKS[surface]} items allowed", at)
    for number, block in enumerate(blocks):
        yield from _block(block, surface, f"{at}/{number}")
    yield from _twice("block_id", "block", [(f"{at}/{n}", block) for n, block in enumerate(blocks)])


def view_problems(view: JSON, kind: str) -> Iterator[str]:
    """Yield what is wrong with a view that should be a ``modal`` or a ``home``."""
    if view.get("type") is None:
        yield _said("missing required field: type", "/view")
        return
    if view["type"] != kind:
        yield _said(f"expected a view of type {kind}", "/view/type")
        return
    yield from _fields(view, VIEWS[kind], "/view", always=("type",))
    blocks = view.get("blocks")
    if blocks is None:
        return
    if not isinstance(blocks, list):
        yield _said("must provide an array", "/view/blocks")
        return
    yield from block_problems(blocks, kind, "/view/blocks")
    inputs = (n for n, block in enumerate(blocks) if isinstance(block, dict) and block.get("type") == "input")
    if kind == "modal" and not view.get("submit"):
        yield from (
            _said("must define `submit` to use an `input` block", f"/view/blocks/{n}") for n in inputs
        )


def _block(block: Any, surface: str, at: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
    if not isinstance(block, dict):
        yield _said("must provide an object", at)
        return
    kind = BLOCKS.get(str(block.get("type")))
    if block.get("type") is None:
        yield _said("missing required field: type", at)
    elif kind is None or surface not in kind.surfaces:
        yield _said(f"unsupported type: {block['type']}", f"{at}/type")
    else:
        yield from _fields(block, kind, at, always=("type", "block_id"))
        yield from _rule(block.get("block_id"), _BLOCK_ID, f"{at}/block_id")
        yield from _elements_twice(block, at)


def _elements_twice(block: JSON, at: str) -> Iterator[str]:
    elements = block.get("elements")
    if block["type"] in ("actions", "context_actions") and isinstance(elements, list):
        yield from _twice(
            "action_id", "element", [(f"{at}/elements/{n}", part) for n, part in enumerate(elements)]
        )


def _twice(name: str, what: str, parts: Sequence[tuple[str, Any]]) -> Iterator[str]:
    seen: set[str] = set()
    for at, part in parts:
        value = part.get(name) if isinstance(part, dict) else None
        if isinstance(value, str) and value in seen:
            yield _said(f"`{name}` {value} already exists for another {what}", f"{at}/{name}")
        elif isinstance(value, str):
            seen.add(value)


def _fields(part: JSON, kind: Fields, at: str, always: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield what is wrong with an object's fields. An empty field (``null``) counts as missing."""
    given = {name: value for name, value in part.items() if value is not None}
    for name in kind.required:
        if name not in given:
            yield _said(f"missing required field: {name}", at)
    if kind.either and not given.keys() & set(kind.either):
        yield _said(f"must define either {' or '.join(f'`{name}`' for name in kind.either)}", at)
    rules = kind.required | kind.optional
    for name, value in given.items():
        if name in rules:
            yield from _rule(value, rules[name], f"{at}/{name}")
        elif name not in always and not kind.open:
            yield _said(f"invalid additional property: {name}", at)


def _rule(value: Any, rule: Rule, at: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
    if value is None or isinstance(rule, Anything):
        return
    match rule:
        case Text() | Named() | Part() | Nested():
            yield from _object(value, rule, at)
        case Array():
            yield from _array(value, rule, at)
        case String():
            yield from _string(value, rule, at)
        case Whole():
            yield from _whole(value, rule, at)
        case Flag() if not isinstance(value, bool):
            yield _said("must provide a boolean", at)
        case Decimal() if not (isinstance(value, str) and _NUMBER.fullmatch(value)):
            yield _said("must provide a number as a string", at)


def _object(value: Any, rule: Text | Named | Part | Nested, at: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
    if not isinstance(value, dict):
        yield _said("must provide an object", at)
        return
    match rule:
        case Text():
            yield from _text(value, rule, at)
        case Named(name):
            yield from _fields(value, SHAPES[name], at)
        case Part(types):
            yield from _typed(value, {name: ELEMENTS[name] for name in types}, at, ("type",))
        case Nested(types):
            yield from _typed(value, {name: BLOCKS[name] for name in types}, at, ("type", "block_id"))


def _string(value: Any, rule: String, at: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
    if not isinstance(value, str):
        yield _said("must provide a string", at)
    elif rule.values and value not in rule.values:
        yield _said("must be a valid enum value", at)
    elif len(value) < rule.least:
        yield _said(f"must be more than {rule.least - 1} characters", at)
    elif rule.most is not None and len(value) > rule.most:
        yield _said(f"must be less than {rule.most + 1} characters", at)


def _array(value: Any, rule: Array, at: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
    if not isinstance(value, list):
        yield _said("must provide an array", at)
        return
    if len(value) < rule.least:
        yield _said(f"no less than {rule.least} items allowed", at)
    if rule.most is not None and len(value) > rule.most:
        yield _said(f"no more than {rule.most} items allowed", at)
    for number, item in enumerate(value):
        if item is None:
            yield _said("must not be null", f"{at}/{number}")
        yield from _rule(item, rule.of, f"{at}/{number}")


def _whole(value: Any, rule: Whole, at: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
    if not isinstance(value, int) or isinstance(value, bool):
        yield _said("must provide an integer", at)
    elif value < rule.least:
        yield _said(f"must be greater than {rule.least - 1}", at)
    elif rule.most is not None and value > rule.most:
        yield _said(f"must be less than {rule.most + 1}", at)


def _text(value: JSON, rule: Text, at: str) -> Iterator[str]:
    if value.get("type") is None:
        yield _said("missing required field: type", at)
    elif value["type"] not in rule.kinds:
        yield _said("must be a valid enum value", f"{at}/type")
    else:
        flag = _TEXT_FIELDS[value["type"]]
        yield from _fields(value, Fields({"text": String(rule.most)}, {flag: Flag()}), at, always=("type",))


def _typed(value: JSON, kinds: dict[str, Fields], at: str, always: tuple[str, ...]) -> Iterator[str]:
    if value.get("type") is None:
        yield _said("missing required field: type", at)
    elif not isinstance(value["type"], str) or value["type"] not in kinds:
        yield _said(f"unsupported type: {value['type']}", f"{at}/type")
    else:
        yield from _fields(value, kinds[value["type"]], at, always)


def _said(problem: str, at: str) -> str:
    return f"{problem} [json-pointer:{at}]"
