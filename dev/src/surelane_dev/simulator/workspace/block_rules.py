"""Rules for the values in blocks and views. Each yields what is wrong with a value, in Slack's words.

A problem ends with its place, as ``[json-pointer:/blocks/0/text/text]``.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from surelane_dev.simulator.workspace.model import JSON

Rule = Callable[[Any, str], Iterator[str]]
PLAIN = ("plain_text",)
ANY_TEXT = ("plain_text", "mrkdwn")
_TEXT_FIELDS = {"plain_text": "emoji", "mrkdwn": "verbatim"}
_NUMBER = re.compile(r"-?\d{1,30}(\.\d{1,30})?")


def said(problem: str, at: str) -> str:
    """Return a problem with its place."""
    return f"{problem} [json-pointer:{at}]"


@dataclass(frozen=True, slots=True)
class Fields:
    """The rule for an object with these fields. An empty field (``null``) counts as missing."""

    required: dict[str, Rule] = field(default_factory=dict)
    optional: dict[str, Rule] = field(default_factory=dict)
    either: tuple[str, ...] = ()
    """Names of fields. At least one of them is needed."""
    open: bool = False
    """Whether it may have fields that are not named here."""
    surfaces: tuple[str, ...] = ("message", "modal", "home")

    def __call__(self, value: Any, at: str, always: Sequence[str] = ()) -> Iterator[str]:  # noqa: ANN401 - any JSON
        """Yield what is wrong. ``always``: further fields that it may have."""
        if not isinstance(value, dict):
            yield said("must provide an object", at)
            return
        given = {name: each for name, each in value.items() if each is not None}
        yield from (
            said(f"missing required field: {name}", at) for name in self.required if name not in given
        )
        if self.either and not given.keys() & set(self.either):
            yield said(f"must define either {' or '.join(f'`{name}`' for name in self.either)}", at)
        rules = self.required | self.optional
        for name, each in given.items():
            if name in rules:
                yield from rules[name](each, f"{at}/{name}")
            elif name not in always and not self.open:
                yield said(f"invalid additional property: {name}", at)


def string(most: int | None = None, least: int = 1, values: Sequence[str] = ()) -> Rule:
    """Return the rule for a text of ``least`` to ``most`` characters, or one of ``values``."""

    def check(value: Any, at: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
        if not isinstance(value, str):
            yield said("must provide a string", at)
        elif values and value not in values:
            yield said("must be a valid enum value", at)
        elif len(value) < least:
            yield said(f"must be more than {least - 1} characters", at)
        elif most is not None and len(value) > most:
            yield said(f"must be less than {most + 1} characters", at)

    return check


def text(most: int = 3000, kinds: Sequence[str] = PLAIN) -> Rule:

    def check(value: Any, at: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
        if not isinstance(value, dict):
            yield said("must provide an object", at)
        elif value.get("type") is None:
            yield said("missing required field: type", at)
        elif value["type"] not in kinds:
            yield said("must be a valid enum value", f"{at}/type")
        else:
            yield from Fields({"text": string(most)}, {_TEXT_FIELDS[value["type"]]: flag})(
                value, at, ("type",)
            )

    return check


def whole(least: int = 0, most: int | None = None) -> Rule:

    def check(value: Any, at: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
        if not isinstance(value, int) or isinstance(value, bool):
            yield said("must provide an integer", at)
        elif value < least:
            yield said(f"must be greater than {least - 1}", at)
        elif most is not None and value > most:
            yield said(f"must be less than {most + 1}", at)

    return check


def array(of: Rule, most: int | None = None, least: int = 1) -> Rule:

    def check(value: Any, at: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
        if not isinstance(value, list):
            yield said("must provide an array", at)
            return
        if len(value) < least:
            yield said(f"no less than {least} items allowed", at)
        if most is not None and len(value) > most:
            yield said(f"no more than {most} items allowed", at)
        for number, item in enumerate(value):
            place = f"{at}/{number}"
            yield from of(item, place) if item is not None else (said("must not be null", place),)

    return check


def flag(value: Any, at: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
    if not isinstance(value, bool):
        yield said("must provide a boolean", at)


def decimal(value: Any, at: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
    """Check a number as text."""
    if not (isinstance(value, str) and _NUMBER.fullmatch(value)):
        yield said("must provide a number as a string", at)


def anything(_: Any, __: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
    """Take a value of any form: Slack's rules for it are not known here."""
    return iter(())


def typed(value: Any, kinds: Mapping[str, Fields], at: str, always: Sequence[str]) -> Iterator[str]:  # noqa: ANN401
    """Check an object by its type."""
    if not isinstance(value, dict):
        yield said("must provide an object", at)
    elif value.get("type") is None:
        yield said("missing required field: type", at)
    elif not isinstance(value["type"], str) or value["type"] not in kinds:
        yield said(f"unsupported type: {value['type']}", f"{at}/type")
    else:
        yield from kinds[value["type"]](value, at, always)


def twice(name: str, what: str, parts: Sequence[JSON | Any], at: str) -> Iterator[str]:
    """Check that no two parts have the same value in a field."""
    seen: set[str] = set()
    for number, part in enumerate(parts):
        value = part.get(name) if isinstance(part, dict) else None
        if isinstance(value, str) and value in seen:
            yield said(f"`{name}` {value} already exists for another {what}", f"{at}/{number}/{name}")
        elif isinstance(value, str):
            seen.add(value)
