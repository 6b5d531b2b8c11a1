"""Tools, each made from an operation of ``/v1``: its name, description, schema and call."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from surelane_operator.api.operation import Operation, Refused, plain
from surelane_operator.console.access.viewer import Viewer
from surelane_operator.mcp.answers import written

PAGE = 50
"""Rows of a page, at most: an assistant reads all of them."""
CHANGES = {"requeue_job": False, "cancel_job": True}
"""The operations that change something and are tools, and whether each ends something that could go on."""
FIXED: Mapping[str, Mapping[str, Any]] = {"get_job": {"payload": False}}
"""Arguments that are not the assistant's to give. ``get_payload`` shows a payload, and keeps that somebody looked."""
HIDDEN: Mapping[str, set[str]] = {"get_job": {"result"}}
"""Fields that an answer lacks: a handler's result may quote what people wrote, and the page does not show it either."""


class Tool:
    """A tool: an operation whose request has no body."""

    def __init__(self, operation: Operation) -> None:
        """Make it from an operation."""
        self._operation = operation
        self._fixed = FIXED.get(operation.name, {})
        self.name = operation.name
        self.description = operation.description()
        self.reads = operation.method == "GET"
        self.role = operation.role
        self.destroys = CHANGES.get(operation.name, False)
        self._part_of: dict[str, str] = {}
        self._defaults: dict[str, Any] = {}
        self.schema = self._schema()

    async def call(self, viewer: Viewer, arguments: Mapping[str, Any]) -> str:
        """Call the operation for a viewer; return its answer as JSON.

        Raises:
            Refused: the arguments cannot be read, or the operation refuses them.
        """
        if unknown := sorted(set(arguments).difference(self._part_of)):
            known = ", ".join(self._part_of) or "none"
            raise Refused(400, f"unknown arguments: {', '.join(unknown)[:200]}; it takes: {known}")
        values = self._defaults | {name: each for name, each in arguments.items() if each is not None}
        given: dict[str, dict[str, Any]] = {part: {} for part in self._operation.parts}
        for name, each in values.items():
            given[self._part_of[name]][name] = _as_text(each)
        if "limit" in values and _exceeds(values["limit"]):
            raise Refused(400, f"limit: ask for {PAGE} at most, then for the next page")
        for name, each in self._fixed.items():
            given["query"][name] = each
        found = await self._operation.call(viewer, given)
        if found is None:
            return "done"
        value = found.model_dump(mode="json", exclude_none=True, exclude=HIDDEN.get(self.name))
        # In a thread: a payload of megabytes would hold up Slack's requests in this process.
        return await asyncio.to_thread(written, value)

    def _schema(self) -> dict[str, Any]:
        """Join the schemas of the operation's path and query."""
        properties: dict[str, Any] = {}
        required: list[str] = []
        for part, model in self._operation.parts.items():
            described = model.model_json_schema()
            for name, each in described["properties"].items():
                if name in self._fixed:
                    continue
                properties[name] = plain(each)
                self._part_of[name] = part
            required += described.get("required", ())
        if "limit" in properties:
            self._defaults["limit"] = min(properties["limit"]["default"], PAGE)
            properties["limit"] |= {"default": self._defaults["limit"], "maximum": PAGE}
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        return schema | ({"required": required} if required else {})


def tools_of(operations: Sequence[Operation], *, changes: bool) -> list[Tool]:
    """Return a tool for each read, and with ``changes`` for those of :data:`CHANGES`."""
    return [
        Tool(operation)
        for operation in operations
        if operation.method == "GET" or (changes and operation.name in CHANGES)
    ]


def _as_text(value: object) -> object:
    """Return a number as HTTP would carry it: the operations read it from an address."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _exceeds(limit: object) -> bool:
    try:
        return int(str(limit)) > PAGE
    except ValueError:
        return False  # the operation says what is wrong with it
