"""Tools, each made from an endpoint of ``/v1``. Answers have a bounded size: an assistant pays for what it reads."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from surelane_operator.api.endpoint import Endpoint, Refused, StreamEndpoint, plain
from surelane_operator.console.access.viewer import Viewer

PAGE = 50
"""Rows of a page, at most: an assistant reads all of them."""
CHANGES = {"rerun_event": False, "cancel_event": True}
"""The endpoints that change something and are tools, and whether each ends something that could go on."""
FIXED: Mapping[str, Mapping[str, Any]] = {
    "get_event": {"payload": False},
    "list_events": {"errors": False},
    "rerun_event": {"payload": None},
}
"""Arguments that are not the assistant's to give. ``get_payload`` shows what people wrote, and keeps the look."""
MOST = 40_000
"""Characters of an answer."""
STEPS = ((4000, 200), (1000, 100), (300, 50), (100, 20))
"""Characters of a text and items of a list that stay. The next pair is tried where the answer is still too long."""


class Tool:
    """A tool: an endpoint whose arguments are the fields of its path, query and body."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._fixed = FIXED.get(endpoint.name, {})
        self.name = endpoint.name
        self.description = endpoint.description()
        self.reads = endpoint.method == "GET"
        self.role = endpoint.role
        self.destroys = CHANGES.get(endpoint.name, False)
        self._part_of: dict[str, str] = {}
        self._defaults: dict[str, Any] = {}
        self.schema = self._schema()

    async def call(self, viewer: Viewer, arguments: Mapping[str, Any]) -> str:
        """Call the endpoint for a viewer, and return its answer as JSON, or raise Refused."""
        if unknown := sorted(set(arguments).difference(self.schema["properties"])):
            known = ", ".join(self.schema["properties"]) or "none"
            raise Refused(400, f"unknown arguments: {', '.join(unknown)[:200]}; it takes: {known}")
        values = self._defaults | {name: each for name, each in arguments.items() if each is not None}
        given: dict[str, dict[str, Any]] = {part: {} for part in self._endpoint.parts}
        if "limit" in values and _exceeds(values["limit"]):
            raise Refused(400, f"limit: ask for {PAGE} at most, then for the next page")
        for name, each in {**values, **self._fixed}.items():
            given[self._part_of[name]][name] = _as_text(each)
        texts = given | ({"body": json.dumps(given["body"])} if "body" in given else {})
        found = await self._endpoint.call(viewer, texts)
        if found is None:
            return "done"
        value = found.model_dump(mode="json", exclude_none=True)
        # In a thread: a payload of megabytes would hold up Slack's requests in this process.
        return await asyncio.to_thread(written, value)

    def _schema(self) -> dict[str, Any]:
        """Join the schemas of the endpoint's path, query and body."""
        properties: dict[str, Any] = {}
        required: list[str] = []
        for part, model in self._endpoint.parts.items():
            described = model.model_json_schema()
            for name, each in described["properties"].items():
                self._part_of[name] = part
                if name not in self._fixed:
                    properties[name] = plain(each)
            required += described.get("required", ())
        if "limit" in properties:
            self._defaults["limit"] = min(properties["limit"]["default"], PAGE)
            properties["limit"] |= {"default": self._defaults["limit"], "maximum": PAGE}
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        return schema | ({"required": required} if required else {})


def tools_of(endpoints: Sequence[Endpoint], *, changes: bool) -> list[Tool]:
    """Return a tool for each read, and with ``changes`` for those of :data:`CHANGES`."""
    return [
        Tool(endpoint)
        for endpoint in endpoints
        if (endpoint.method == "GET" and not isinstance(endpoint, StreamEndpoint))
        or (changes and endpoint.name in CHANGES)
    ]


def _as_text(value: object) -> object:
    """Return a number as HTTP would carry it: the endpoints read it from an address."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _exceeds(limit: object) -> bool:
    try:
        return int(str(limit)) > PAGE
    except ValueError:
        return False  # the endpoint says what is wrong with it


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
