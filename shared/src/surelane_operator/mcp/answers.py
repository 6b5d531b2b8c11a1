"""Write a tool's answer as JSON of a bounded size: an assistant pays for what it reads."""

import json
from itertools import islice
from typing import Any

MOST = 40_000
"""Characters of an answer."""
STEPS = ((4000, 200), (1000, 100), (300, 50), (100, 20))
"""Characters of a text and items of a list that stay. The next pair is tried where the answer is still too long."""


def written(value: Any) -> str:  # noqa: ANN401 - JSON
    """Return ``value`` as JSON. Long texts and lists are cut, and say so; the whole is cut if that is not enough."""
    text = ""
    for characters, items in STEPS:
        text = json.dumps(_cut(value, characters, items), ensure_ascii=False, separators=(",", ":"))
        if len(text) <= MOST:
            return text
    return text[:MOST] + "… cut: the answer is too long"


def _cut(value: Any, characters: int, items: int) -> Any:  # noqa: ANN401 - JSON
    match value:
        case str() if len(value) > characters:
            return f"{value[:characters]}… {len(value) - characters:,} more characters"
        case list() if len(value) > items:
            # The first items of a story say how it began, the last ones how it ended.
            first = [_cut(each, characters, items) for each in value[: items // 2]]
            last = [_cut(each, characters, items) for each in value[-(items // 2) :]]
            return [*first, f"… {len(value) - len(first) - len(last):,} more here", *last]
        case list():
            return [_cut(each, characters, items) for each in value]
        case dict():
            kept = {
                _cut(name, characters, items): _cut(each, characters, items)
                for name, each in islice(value.items(), items)
            }
            return kept | ({"…": f"{len(value) - items:,} more here"} if len(value) > items else {})
        case _:
            return value
