"""Tools, each made from an endpoint of ``/v1``. Answers have a bounded size: an assistant pays for what it reads."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from surelane_operator.api.endpoint import CallRefused, Endpoint
from surelane_operator.roles import Viewer

PAGE = 50
"""Rows of a page, at most: an assistant reads all of them."""
MOST = 40_000
"""Characters of an answer."""
STEPS = ((4000, 200), (1000, 100), (300, 50), (100, 20))
"""Characters of a text and items of a list that stay. The next pair is tried where the answer is still too long."""


class AssistantTool:
    """A tool: an endpoint whose arguments are the fields of its path, query and body."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.name, self.role, self.description = endpoint.name, endpoint.role, endpoint.description
        self.reads, self.destroys = endpoint.destroys is None, bool(endpoint.destroys)
        self._defaults: dict[str, Any] = {}
        self.schema = self._schema()

    async def call(self, viewer: Viewer, arguments: Mapping[str, Any]) -> str:
        """Call the endpoint for a viewer, and return its answer as JSON, or raise CallRefused."""
        if unknown := sorted(set(arguments).difference(self.schema["properties"])):
            known = ", ".join(self.schema["properties"]) or "none"
            raise CallRefused(400, f"unknown arguments: {', '.join(unknown)[:200]}; it takes: {known}")
        values = self._defaults | {name: each for name, each in arguments.items() if each is not None}
        if "limit" in values and _exceeds(values["limit"]):
            raise CallRefused(400, f"limit: ask for {PAGE} at most, then for the next page")
        found = await self._endpoint.call(viewer, self._endpoint.given({**values, **self._endpoint.fixed}))
        if found is None:
            return "done"
        value = found.model_dump(mode="json", exclude_none=True)
        # In a thread: a payload of megabytes would hold up Slack's requests in this process.
        return await asyncio.to_thread(written, value)

    def _schema(self) -> dict[str, Any]:
        """Join the schemas of the endpoint's path, query and body."""
        fields = self._endpoint.fields
        properties = {
            name: dict(each.schema) for name, each in fields.items() if name not in self._endpoint.fixed
        }
        required = [name for name, each in fields.items() if each.required]
        if "limit" in properties:
            self._defaults["limit"] = min(properties["limit"]["default"], PAGE)
            properties["limit"] |= {"default": self._defaults["limit"], "maximum": PAGE}
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        return schema | ({"required": required} if required else {})


def tools_of(endpoints: Sequence[Endpoint]) -> list[AssistantTool]:
    """Return a tool for each read, and for each change that says whether it destroys something."""
    return [
        AssistantTool(endpoint)
        for endpoint in endpoints
        if (endpoint.method == "GET" and not endpoint.streams) or endpoint.destroys is not None
    ]


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
