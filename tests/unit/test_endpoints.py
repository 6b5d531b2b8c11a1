"""One declaration is a route with its document, a command and an assistant's tool: walk all endpoints, and compare."""

import json
import re
from collections.abc import Iterator
from typing import Any, cast

import pytest
import typer

from surelane_operator.api.api import OperatorApi
from surelane_operator.api.endpoint import Endpoint
from surelane_operator.api.routes import route_of
from surelane_operator.cli.command import app
from surelane_operator.mcp.tools import PAGE, tools_of

API = OperatorApi(cast("Any", None), cast("Any", None))
DOCUMENT = API.document()


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name}{word} ")
        else:
            yield f"{name}{word}", command


COMMANDS = dict(commands(typer.main.get_command(app)))
TOOLS = {tool.name: tool for tool in tools_of(API.endpoints)}


@pytest.mark.parametrize("endpoint", API.endpoints, ids=lambda endpoint: endpoint.name)
def test_route_document_command_and_tool_agree(endpoint: Endpoint) -> None:
    route = route_of(endpoint)
    described = DOCUMENT["paths"][endpoint.path][endpoint.method.lower()]
    assert (route.method, route.path, described["operationId"]) == (
        endpoint.method,
        endpoint.path,
        endpoint.id,
    )
    assert described["x-surelane-role"] == endpoint.role
    assert {each["name"] for each in described["parameters"] if each["required"]} == {
        name for name, given in endpoint.fields.items() if given.required and given.part != "body"
    }
    in_path = {name for name, given in endpoint.fields.items() if given.part == "path"}
    assert in_path == set(re.findall(r"{(\w+)}", endpoint.path))
    of_query = {each["name"] for each in described["parameters"]} - in_path
    assert of_query == {name for name, given in endpoint.fields.items() if given.part == "query"}
    _compare_command(endpoint)
    _compare_tool(endpoint)


def _compare_command(endpoint: Endpoint) -> None:
    declared = endpoint.command
    if declared is None:
        return
    made = COMMANDS[declared.name]
    assert made.help == endpoint.description
    named = {"id": "key", **declared.renamed}
    wanted = {name: given for name, given in endpoint.fields.items() if name not in declared.without}
    found = {each.name: each for each in made.params}
    own = {"database", "as_json"} | ({"watch"} if declared.watch is not None else set())
    assert set(found) == {named.get(name, name) for name in wanted} | own
    assert set(declared.arguments) >= {name for name, given in wanted.items() if given.part == "path"}
    for name, given in wanted.items():
        option, default = found[named.get(name, name)], given.schema.get("default")
        assert option.required == given.required
        if name not in declared.arguments:
            assert f"--{named.get(name, name).replace('_', '-')}" in option.opts
            assert option.default in (default, json.dumps(default))
        assert re.fullmatch(r"[A-Z0`].*\.", option.help)


def _compare_tool(endpoint: Endpoint) -> None:
    is_tool = (endpoint.method == "GET" and not endpoint.streams) or endpoint.destroys is not None
    assert (endpoint.name in TOOLS) == is_tool
    if is_tool:
        tool = TOOLS[endpoint.name]
        assert (tool.reads, tool.role) == (endpoint.method == "GET", endpoint.role)
        assert set(tool.schema["properties"]) == set(endpoint.fields) - set(endpoint.fixed)
        assert set(endpoint.fixed) <= set(endpoint.fields)
        assert tool.schema["properties"].get("limit", {"maximum": PAGE})["maximum"] == PAGE


def test_who_may_call_what() -> None:
    viewers = {endpoint.name for endpoint in API.endpoints if endpoint.role == "viewer"}
    reads = {endpoint.name for endpoint in API.endpoints if endpoint.method == "GET"}
    assert viewers == reads | {"preview_change"}
    changes = {tool.name: tool.destroys for tool in TOOLS.values() if not tool.reads}
    assert changes == {"rerun_event": False, "cancel_event": True}
    assert {"keys new", "events why", "doctor"} <= set(COMMANDS), "those that no endpoint is"
