"""Set the tags by which operators find an event."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial

from surelane.events import Event
from surelane_worker.handling.steps import Steps

LONGEST_VALUE = 200
_NAME = re.compile(r"[\w.-]{1,40}", re.ASCII)


class TagError(ValueError):
    """A tag cannot be set; none of the call's tags was."""


async def set_tags(steps: Steps, events: Sequence[Event], tags: Mapping[str, object]) -> None:
    """Set tags of each event; see :meth:`Context.tag`."""
    checked = {_name(name): _value(name, value) for name, value in tags.items()}
    for event in events:
        await steps.fenced(partial(steps.engine.store_tags, event.id, event.claim, checked))


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise TagError(f"the name of a tag has 1 to 40 letters, digits, _, . and -: {name!r:.80}")
    return name


def _value(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | int | float):
        raise TagError(f"tag {name} is a {type(value).__name__}: give it a text or a number")
    text = value if isinstance(value, str) else json.dumps(value)
    if not 0 < len(text) <= LONGEST_VALUE or not text.isprintable():
        raise TagError(f"the value of tag {name} has 1 to {LONGEST_VALUE} printable characters")
    return text
