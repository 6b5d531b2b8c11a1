"""Make the pages of the reference from the code: commands, names of the Python packages, HTTP operations."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import typer

import surelane
import surelane.testing
import surelane_agents
import surelane_drivers
import surelane_worker.errors
from surelane_operator.api.api import OperatorApi
from surelane_operator.cli.command import app as surelane_command

MARK = "<!-- below: made from the code by tests/docs, with SURELANE_RECORD=1 -->"
ROLE = re.compile(r":\w+:`~?\.?([^`]+)`")
FIELDS = re.compile(r"(Args|Raises|Returns|Yields):")
COLUMNS = 100
DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"\| \[([^]]+)\]\(([^)]+)\) \| (.+) \|")
ITEM = re.compile(r"( *)([\w*, .]+): (.*)")


def commands() -> Iterator[str]:
    """Yield each command with its arguments and options."""
    yield from _command(typer.main.get_command(surelane_command), "surelane")


def _command(command: Any, name: str) -> Iterator[str]:
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
    """Yield the public names of the packages, with their signatures as the code has them."""
    for module, use in (
        (surelane_worker, "Handlers"),
        (surelane_worker.errors, "Errors of handlers"),
        (surelane, "Other programs"),
        (surelane_drivers, "Synchronous programs"),
        (surelane_agents, "Agents"),
        (surelane.testing, "Tests"),
    ):
        yield f"\n## {use}: `{module.__name__}`\n"
        for name in module.__all__:
            if not name.startswith("__") and not (module is surelane and name in surelane_worker.__all__):
                yield from _named(name, getattr(module, name))


def _named(name: str, value: Any) -> Iterator[str]:
    if inspect.isfunction(inspect.unwrap(value)):
        yield from _function(_tree(inspect.unwrap(value)), "###")
    elif inspect.isclass(value):
        yield from _class(value)
    else:
        yield f"### `{name}`\n\n`{re.sub(r'([a-z_]+[.])+', '', str(value))}`\n"


def _tree(value: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def _class(value: type) -> Iterator[str]:
    """Yield a class, what it has as attributes, and its methods. Bases of ours count: their members are its own."""
    parts = [each for each in value.__mro__ if each.__module__.startswith("surelane")]
    kind = "exception" if issubclass(value, BaseException) else "class"
    yield f"### {kind} `{value.__name__}`\n\n{_text(value.__doc__ or '')}\n"
    seen, methods = set[str](), list[str]()
    for part in parts:
        body = _tree(part).body
        for member, after in zip(body, [*body[1:], None], strict=True):
            if (name := _member(member)) is None or name in seen:
                continue
            seen.add(name)
            if isinstance(member, ast.AnnAssign):
                said = f": {_line(after.value.value)}" if _is_text(after) else ""
                yield f"- `{ast.unparse(member)}`{said}"
            elif ast.get_docstring(member):
                methods += _function(member, "####", f"{value.__name__}.")
    yield ""
    yield from methods


def _member(member: ast.AST) -> str | None:
    """Return the name of a public attribute or method of an object."""
    if "ClassVar" in ast.unparse(getattr(member, "annotation", None) or ast.Pass()):
        return None
    target = getattr(member, "target", member)
    name = getattr(target, "name", None) or getattr(target, "id", None)
    return name if name and not name.startswith("_") else None


def _is_text(after: Any) -> bool:
    return isinstance(after, ast.Expr) and isinstance(getattr(after.value, "value", None), str)


def _function(tree: Any, heading: str, within: str = "") -> Iterator[str]:
    is_property = any(ast.unparse(each).endswith("property") for each in tree.decorator_list)
    yield f"{heading} `{within}{tree.name}`\n"
    returns = f" -> {ast.unparse(tree.returns)}" if tree.returns else ""
    if is_property:
        yield f"```python\n{tree.name}{returns.replace(' ->', ':')}\n```\n"
    else:
        given = [*tree.args.posonlyargs, *tree.args.args]
        if within and given and given[0].arg in ("self", "cls"):
            (tree.args.posonlyargs or tree.args.args).pop(0)
        word = "async def" if isinstance(tree, ast.AsyncFunctionDef) else "def"
        yield f"```python\n{_wrapped(f'{word} {tree.name}(', ast.unparse(tree.args), f'){returns}')}\n```\n"
    yield _text(ast.get_docstring(tree) or "") + "\n"


def _wrapped(before: str, given: str, after: str) -> str:
    """Return a signature in lines of 100 columns."""
    if len(line := before + given + after) <= COLUMNS:
        return line
    inner = textwrap.fill(
        given, COLUMNS, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )
    return f"{before}\n{inner},\n{after}"


def _line(text: str) -> str:
    return _text(" ".join(text.split()))


def _text(docstring: str) -> str:
    """Return a docstring as Markdown: its arguments and errors are lists."""
    lines, inside = list[str](), False
    for line in ROLE.sub(r"`\1`", inspect.cleandoc(docstring)).replace("``", "`").splitlines():
        if FIELDS.fullmatch(line):
            inside = True
            lines += [f"{line}", ""]
        elif inside and (item := ITEM.fullmatch(line)) and len(item[1]) == 4:
            lines.append(f"- `{item[2]}`: {item[3]}")
        else:
            inside = inside and (not line or line[0] == " ")
            lines.append(f"  {line.strip()}" if inside and line else line)
    return "\n".join(lines)


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


PAGES: Mapping[str, Callable[[], Iterator[str]]] = {"commands": commands, "python": python, "http": http}


def page(file: Path, name: str) -> str:
    """Return a page as it should be: its own beginning, then what the code says."""
    made = re.sub(r"\n{3,}", "\n\n", "\n".join(PAGES[name]()))
    beginning = file.read_text(encoding="utf-8").partition(MARK)[0].rstrip()
    return f"{beginning}\n\n{MARK}\n\n{made.strip()}\n"


def contents() -> str:
    """Return ``llms.txt``: the pages of the index, with what each tells, as assistants look for them."""
    lines = (DOCS / "index.md").read_text(encoding="utf-8").splitlines()
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    made = ["# Surelane", "", "> " + " ".join(readme.split("\n\n")[1].split())]
    for line in lines:
        if line.startswith("## "):
            made += ["", line, ""]
        elif row := ROW.fullmatch(line):
            made.append(f"- [{row[1]}]({row[2]}): {row[3]}")
    return "\n".join(made) + "\n"
