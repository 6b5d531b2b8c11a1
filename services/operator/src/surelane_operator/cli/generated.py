"""Commands that are made from endpoints: their arguments, options and output, and how a refusal ends them."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel
from typer import Argument, Option

from surelane.calls import Connection
from surelane_operator.api.bulk import BulkApi
from surelane_operator.api.endpoint import (
    AsCommand,
    CallRefused,
    Endpoint,
    Given,
    Table,
    declared,
    endpoints_of,
)
from surelane_operator.api.queue import QueueApi
from surelane_operator.changes import Changes
from surelane_operator.cli.output import ago, clock, say, show_json, show_table, watched
from surelane_operator.cli.session import (
    Database,
    ExitCode,
    Json,
    event_named,
    failed,
    known_kinds,
    read_json,
    run,
)
from surelane_operator.doctor import Examinations
from surelane_operator.reads.filters import MAX_ID

KEY = "An event's id or natural key: Slack's event_id, or the trigger_id of a click."
_EXITS = {400: ExitCode.USAGE, 404: ExitCode.NOT_FOUND}


def add_commands(app: typer.Typer, groups: Mapping[str, typer.Typer]) -> None:
    """Add each endpoint that is a command to its group."""
    for endpoint in (*declared(QueueApi), *declared(BulkApi)):
        if endpoint.command is not None:
            group, _, word = endpoint.command.name.rpartition(" ")
            (groups[group] if group else app).command(word)(_function(endpoint, endpoint.command))


def _function(endpoint: Endpoint, command: AsCommand) -> Callable[..., None]:
    """Return the function of a command. Typer reads its arguments and options from the signature."""
    parameters = dict(_parameters(endpoint, command))
    names = {parameter.name: field for field, parameter in parameters.items()}

    def function(database: str, as_json: bool, watch: bool = False, **given: Any) -> None:  # noqa: ANN401 - typer's
        values = {names[name]: value for name, value in given.items() if value not in (None, [])}
        values |= (command.watch or {}) if watch else {}

        def show() -> None:
            _show(endpoint, command, values, answer_of(endpoint, database, values), as_json)

        watched(show, watch=watch)

    own = [_parameter("database", Database), _parameter("as_json", Json, default=False)]
    if command.watch is not None:
        again = Annotated[bool, Option(help="Print it again every two seconds.")]
        own.append(_parameter("watch", again, default=False))
    vars(function)["__signature__"] = Signature([*parameters.values(), *own])
    function.__annotations__ = {}
    function.__doc__ = endpoint.description
    return function


def _parameter(name: str, kind: object, default: object = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _parameters(endpoint: Endpoint, command: AsCommand) -> Iterator[tuple[str, Parameter]]:
    """Yield the arguments, then an option for each other field."""
    for name, several in command.arguments.items():
        yield name, _argument(name, endpoint.fields[name], several=several)
    for name, given in endpoint.fields.items():
        if name not in (*command.arguments, *command.without):
            yield name, _option(command.renamed.get(name, name), given)


def _argument(name: str, given: Given, *, several: bool) -> Parameter:
    kind, about = list[str] if several else str, KEY if name == "id" else _help(given.schema)
    argument = Argument(help=about, autocompletion=_completion(name, given.schema))
    default = Parameter.empty if given.required else "null"
    return _parameter("key" if name == "id" else name, Annotated[kind, argument], default)


def _option(name: str, given: Given) -> Parameter:
    schema, kind = given.schema, _type(given.schema)
    more: dict[str, Any] = {"help": _help(schema), "autocompletion": _completion(name, schema)}
    if kind is int:
        values = schema.get("enum", (schema.get("minimum"), schema.get("maximum")))
        more |= {"min": values[0], "max": None if values[-1] == MAX_ID else values[-1]}
    default = schema.get("default")
    if kind is str and default is not None:
        default = default if isinstance(default, str) else json.dumps(default)
    return _parameter(name, Annotated[kind if default is not None else kind | None, Option(**more)], default)


def _completion(name: str, schema: Mapping[str, Any]) -> Callable[..., list[str]] | None:
    if possible := schema.get("items", {}).get("enum"):
        return lambda: list(possible)
    return known_kinds if name == "kind" else None


def _help(schema: Mapping[str, Any]) -> str | None:
    said = schema.get("description")
    possible = schema.get("items", {}).get("enum", ())
    choices = f": {', '.join(possible)}" if possible else ""
    several = "; repeatable" if schema.get("type") == "array" else ""
    return said and f"{said[0].upper()}{said[1:]}{choices}{several}."


def _type(schema: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a type
    """Return the type as typer knows it. What is neither of these is given as text."""
    match schema:
        case {"enum": [int(), *_]}:
            return int
        case {"enum": values}:
            return Literal[tuple(values)]
        case {"type": "array"}:
            return list[str]
        case {"format": "date-time"}:
            return datetime
        case {"type": "integer" | "boolean" as named}:
            return int if named == "integer" else bool
        case _:
            return str


def answer_of(endpoint: Endpoint, database: str, values: dict[str, Any]) -> BaseModel | None:
    """Call an endpoint with what typer has read; the event's key becomes its id. A refusal ends the command."""
    read = {name: _read(endpoint.fields[name].schema, value) for name, value in values.items()}

    async def work(changes: Changes, _: Connection) -> BaseModel | None:
        if "id" in values:
            read["id"] = values["id"] = (await event_named(changes, values["id"]))["id"]
        owners = QueueApi(changes, Examinations(database)), BulkApi(changes)
        (bound,) = [each for each in endpoints_of(*owners) if each.name == endpoint.name]
        return await bound.run(bound.given(read))

    try:
        # Before it connects: wrong usage is told also while the database is away.
        endpoint.read(endpoint.given(read | ({"id": 1} if "id" in read else {})))
        return run(database, work)
    except CallRefused as refused:
        raise failed(refused.error, _EXITS.get(refused.status, ExitCode.FAILED)) from None


def _read(schema: Mapping[str, Any], value: Any) -> object:  # noqa: ANN401 - what typer has read
    """Return a value as the endpoint takes it: times of the terminal's zone, words as one text, JSON as what it is."""
    if isinstance(value, datetime):
        return value.astimezone().isoformat()
    if isinstance(value, list) and schema.get("type") != "array":
        return " ".join(value)
    if isinstance(value, str) and (
        schema.get("type") == "object" or not schema.keys() & {"type", "anyOf", "enum"}
    ):
        return read_json(value, f"{value} is not JSON; quote a text twice: '\"yes\"'")
    return value


def _show(
    endpoint: Endpoint, command: AsCommand, values: Mapping[str, Any], answer: BaseModel | None, as_json: bool
) -> None:
    found = answer.model_dump(mode="json" if as_json else "python") if answer else {}
    if isinstance(command.prints, str):
        path = {name: values[name] for name, each in endpoint.fields.items() if each.part == "path"}
        said = {name: _in_words(each) for name, each in {**values, **found}.items()}
        say(command.prints.format(**said), {**path, **command.also, **found}, as_json=as_json)
    elif as_json:
        show_json(found if command.more else found[command.prints.rows])
    else:
        _show_rows(command.prints, found)
        if command.more:
            typer.echo()
            _show_rows(command.more, found)


def _in_words(value: object) -> object:
    return f"{clock(value)}, {ago(value)}" if isinstance(value, datetime) else value


def _show_rows(table: Table, found: Mapping[str, Any]) -> None:
    show_table(table, [row | dict(table.beside(row)) for row in found[table.rows]])
