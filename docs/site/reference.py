"""Generate the reference from the code: the commands, the names of the Python packages, the HTTP operations."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import typer
from sphinx.application import Sphinx

import surelane
import surelane.testing
import surelane_drivers
import surelane_worker.errors
from surelane_operator.api.api import OperatorApi
from surelane_operator.cli.command import app as surelane_command


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", append)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def append(_: Sphinx, name: str, source: list[str]) -> None:
    """Append what the code says to a page of the reference."""
    if name in PAGES:
        source[0] += "\n" + "\n".join(PAGES[name]()) + "\n"


def commands() -> Iterator[str]:
    """Yield each command with its arguments and options."""
    yield from _command(typer.main.get_command(surelane_command), "surelane")


def _command(command: Any, name: str) -> Iterator[str]:  # noqa: ANN401 - typer brings its own click
    if hasattr(command, "commands"):
        for word, each in sorted(command.commands.items()):
            yield from _command(each, f"{name} {word}")
        return
    context = command.context_class(command, info_name=name)
    pieces = command.collect_usage_pieces(context)
    yield f"\n## `{name}`\n\n{inspect.cleandoc(command.help or '')}\n"
    yield f"```text\n{name} {' '.join(pieces)}\n```\n"
    rows = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
    if rows:
        yield from ("| | |", "|---|---|")
        yield from (f"| {_code(left)} | {_cell(right)} |" for left, right in rows)


def python() -> Iterator[str]:
    """Yield the public names of the packages."""
    for module, use in (
        (surelane_worker, "Handlers"),
        (surelane_worker.errors, "Errors of handlers"),
        (surelane, "Other programs"),
        (surelane_drivers, "Synchronous programs"),
        (surelane.testing, "Tests"),
    ):
        yield f"\n## {use}: `{module.__name__}`\n"
        for name in module.__all__:
            if not name.startswith("__") and not (module is surelane and name in surelane_worker.__all__):
                yield from _name(module.__name__, name, getattr(module, name))


def _name(module: str, name: str, value: object) -> Iterator[str]:
    kind = "class" if inspect.isclass(value) else "function" if inspect.isfunction(value) else "data"
    if inspect.isclass(value) and issubclass(value, BaseException):
        kind = "exception"
    members = "   :members:\n" if kind == "class" else ""
    yield f"```{{eval-rst}}\n.. auto{kind}:: {module}.{name}\n{members}```\n"


def http() -> Iterator[str]:
    """Yield the operations of the OpenAPI document, then the objects that they read and answer."""
    # The signatures of its methods suffice: it needs no database.
    document = OperatorApi(cast("Any", None), cast("Any", None)).document()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"\n## `{method.upper()} {path}`\n\n{operation['summary']}.\n"
            yield from _fields("parameter", {p["name"]: p["schema"] for p in operation["parameters"]})
            if body := operation.get("requestBody"):
                yield f"Body: {_type(body['content']['application/json']['schema'])}\n"
            yield from ("| status | answer |", "|---|---|")
            for status, answer in operation["responses"].items():
                schema = answer.get("content", {}).get("application/json", {}).get("schema")
                shown = f", {_type(schema)}" if schema and not schema["$ref"].endswith("/Problem") else ""
                yield f"| {status} | {_cell(answer['description'].rstrip('.'))}{shown} |"
            yield ""
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f"\n## {name}\n\n{inspect.cleandoc(schema.get('description', '')).splitlines()[0]}\n"
        yield from _fields("field", schema.get("properties", {}))


def _fields(title: str, fields: Mapping[str, Any]) -> Iterator[str]:
    if fields:
        yield from (f"| {title} | type | |", "|---|---|---|")
        for name, schema in fields.items():
            default = f"{schema['default']!r} by default" if schema.get("default") is not None else ""
            said = "; ".join(part for part in (schema.get("description", ""), default) if part)
            yield f"| `{name}` | {_type(schema)} | {_cell(said)} |"
        yield ""


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type of a JSON schema in words."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if values := schema.get("enum"):
        return ", ".join(f"`{value}`" for value in values)
    if "const" in schema:
        return f"`{schema['const']}`"
    if several := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(_type(each) for each in several))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type", "any"))


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


PAGES: Mapping[str, Callable[[], Iterator[str]]] = {
    "reference/commands": commands,
    "reference/python": python,
    "reference/http": http,
}
