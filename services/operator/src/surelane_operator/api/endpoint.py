"""Endpoints: one declaration is a request of ``/v1`` with its document, a command, and an assistant's tool.

The function's signature says what a call reads and what it answers.
"""

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, Self, get_args

from pydantic import BaseModel, Json, ValidationError, create_model
from pydantic.json_schema import models_json_schema

from surelane.errors import (
    Conflict,
    DatabaseRefused,
    DatabaseUnavailable,
    Forbidden,
    InvalidInput,
    described,
    told,
)
from surelane_operator.api.models import Problem
from surelane_operator.roles import Role, Viewer
from surelane_service.logs import get_logger

ALWAYS = {
    400: "the request cannot be read",
    401: "the token is missing or wrong, or there is no session",
    429: "too many wrong tokens came from this address",
    503: "the database is away",
}
"""The refusals of every endpoint."""
UNKNOWN = {404: "there is no such event"}
IN_THE_WAY = "another transaction, or another event under the same key, is in the way"
NO_MEMBER = "set SURELANE_OPERATOR_DATABASE_URL to a role that is a member of agent_operator"
TOO_LARGE = "the body is too large"
FORBIDDEN = "this needs the role operator, and the page's own CSRF token"
_logger = get_logger(__name__)


class CallRefused(Exception):  # noqa: N818 - it is an answer, not a failure
    """A call of an endpoint is refused: with a status of HTTP, and a sentence that says why."""

    def __init__(self, status: int, error: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.headers = headers


class Given(NamedTuple):
    """A field of an endpoint's ``path``, ``query`` or ``body``, as a JSON schema."""

    part: str
    schema: Mapping[str, Any]
    required: bool


@dataclass(frozen=True, slots=True)
class Table:
    """How a command shows a list, which is the field ``rows`` of the answer.

    ``columns`` are fields, or ``field=title``. With ``*`` after the field, its values lose their middle where a
    terminal is narrow. ``note`` is a field that stands below its row. ``beside`` returns what no field of a row has.
    """

    rows: str
    columns: str
    empty: str
    note: str | None = None
    beside: Callable[[dict[str, Any]], Mapping[str, Any]] = dict


@dataclass(frozen=True, slots=True)
class AsCommand:
    """How an endpoint is a command, such as ``cron set {name} {kind} {schedule}``.

    Fields in braces are arguments; one with ``...`` takes several words. Every other field is an option, unless
    ``without`` has it, and may be ``renamed``. ``watch`` has the fields that ``--watch`` sets.

    It ``prints`` a table, or a sentence with the path and the answer filled in. As JSON it prints the table's rows; the
    answer, where ``more`` is a second table; for a sentence the path, ``also`` and the answer.
    """

    usage: str
    prints: str | Table
    also: Mapping[str, object] = field(default_factory=dict)
    more: Table | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    without: Collection[str] = ()
    watch: Mapping[str, object] | None = None

    @property
    def name(self) -> str:
        return self.usage.partition(" {")[0]

    @property
    def arguments(self) -> dict[str, bool]:
        """The fields that are arguments, and whether each takes several words."""
        return {name: bool(several) for name, several in re.findall(r"{(\w+)(\.\.\.)?}", self.usage)}


class Endpoint:
    """One method of one path, and the function that answers it.

    The function's parameters ``path``, ``query`` and ``body`` are models. It returns a model, or nothing or true for
    204. ``None`` instead of a model, or false, is the refusal 404. Its name and docstring are the document's.
    By default viewers may call what reads, and operators what changes. ``refusals`` come beside :data:`ALWAYS`.

    A read is also an assistant's tool. A change is one where ``destroys`` says whether it ends something that could go
    on. ``fixed`` has arguments that are not the assistant's to give. With ``command`` it is a command, too.
    """

    streams = False
    """Whether the answer is a stream, which is no tool."""

    def __init__(
        self,
        method: str,
        path: str,
        call: Callable[..., Awaitable[BaseModel | bool | None]],
        *,
        status: int | None = None,
        refusals: Mapping[int, str] | None = None,
        role: Role | None = None,
        command: AsCommand | None = None,
        destroys: bool | None = None,
        fixed: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare it. ``call`` may be a method: see :meth:`bound`."""
        signature = inspect.signature(call)
        first, *others = call.__name__.split("_")
        self.id = first + "".join(word.capitalize() for word in others)
        self.name = call.__name__
        self.description = inspect.getdoc(call) or self.id
        self.method, self.path, self._call = method, path, call
        self.command, self.destroys, self.fixed = command, destroys, fixed or {}
        self._answer = _model_of(signature.return_annotation)
        self.status = status or (200 if self._answer else 204)
        self.parts: Mapping[str, type[BaseModel]] = {
            name: parameter.annotation for name, parameter in signature.parameters.items() if name != "self"
        }
        body = self.parts.get("body")
        self.role: Role = role or ("viewer" if method == "GET" else "operator")
        forbidden = {403: FORBIDDEN} if self.role == "operator" else {}
        self._refusals = ALWAYS | forbidden | ({413: TOO_LARGE} if body else {}) | dict(refusals or {})
        self.no_body = b""
        """What is read where the request has no body: that is allowed where no field is required."""
        if body and not any(field.is_required() for field in body.model_fields.values()):
            self.no_body = b"{}"
        fields: dict[str, Any] = {
            name: (Json[model] if name == "body" else model, ...)  # type: ignore[misc, valid-type]
            for name, model in self.parts.items()
        }
        self._input = create_model(self.id, **fields)

    def bound(self, owner: object) -> Self:
        """Return it as the endpoint of an object that has it among its methods."""
        bound = copy(self)
        vars(bound)["_call"] = partial(self._call, owner)
        return bound

    async def call(self, viewer: Viewer, given: Mapping[str, object]) -> BaseModel | None:
        """Do as :meth:`run` for a viewer who may; also what the database refuses is a :class:`CallRefused`."""
        if not viewer.may(self.role):
            raise CallRefused(403, FORBIDDEN)
        try:
            return await self.run(given)
        except InvalidInput as error:
            raise CallRefused(400, f"a value cannot be stored: {error}") from error
        except Conflict as error:
            raise CallRefused(409, IN_THE_WAY) from error
        except DatabaseUnavailable as error:
            _logger.warning("database away", **described(error), endpoint=self.id)
            raise CallRefused(503, "the database is away", {"Retry-After": "2"}) from error
        except Forbidden as error:
            if error.report.meant:
                raise CallRefused(403, str(error)) from error
            _logger.warning(
                "the API's role is no member of agent_operator", **described(error), endpoint=self.id
            )
            raise CallRefused(503, NO_MEMBER) from error
        except DatabaseRefused as error:
            _logger.warning("the database refuses this", **described(error), endpoint=self.id)
            raise CallRefused(
                503, f"the database refuses this: {told(error)}", {"Retry-After": "2"}
            ) from error

    async def run(self, given: Mapping[str, object]) -> BaseModel | None:
        """Call the function with what :meth:`read` returns; raise :class:`CallRefused` where there is no such thing."""
        found = await self._call(**self.read(given))
        if found is False or (found is None and self._answer):
            raise CallRefused(404, self._refusals[404])
        return found if isinstance(found, BaseModel) else None

    def read(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Read the fields of ``path`` and ``query`` as text and the ``body`` as JSON, or raise :class:`CallRefused`."""
        try:
            return dict(self._input.model_validate(given))
        except ValidationError as error:
            complaints = [
                f"{'.'.join(map(str, each['loc'][1:])) or each['loc'][0]}: {each['msg'].removeprefix('Value error, ')}"
                for each in error.errors(include_url=False)
            ]
            raise CallRefused(400, "; ".join(complaints)) from None

    def given(self, values: Mapping[str, object]) -> dict[str, object]:
        """Return the values of fields as :meth:`read` takes them: by part, numbers as HTTP would carry them."""
        given: dict[str, dict[str, object]] = {part: {} for part in self.parts}
        for name, value in values.items():
            given[self.fields[name].part][name] = value
        for part in given.keys() - {"body"}:
            given[part] = {name: _as_text(value) for name, value in given[part].items()}
        return given | ({"body": json.dumps(given["body"])} if "body" in given else {})

    @cached_property
    def fields(self) -> dict[str, Given]:
        """The fields of the path, the query and the body."""
        schemas = {part: model.model_json_schema() for part, model in self.parts.items()}
        return {
            name: Given(part, _plain(each), name in schema.get("required", ()))
            for part, schema in schemas.items()
            for name, each in schema["properties"].items()
        }

    def models(self) -> list[type[BaseModel]]:
        """Return the models that the document names: those of the body and of the answer."""
        return [model for model in (self.parts.get("body"), self._answer) if model]

    def described(self) -> dict[str, Any]:
        answer: dict[str, Any] = {"description": "done"}
        if self._answer:
            description = inspect.getdoc(self._answer) or self._answer.__name__
            answer = {"description": description.splitlines()[0], "content": _json(self._answer)}
        described: dict[str, Any] = {
            "operationId": self.id,
            "summary": self.description.splitlines()[0].rstrip("."),
            "x-surelane-role": self.role,
            "parameters": [
                _parameter(name, each) for name, each in self.fields.items() if each.part != "body"
            ],
            "responses": {str(self.status): answer}
            | {
                str(status): {"description": meaning, "content": _json(Problem)}
                for status, meaning in self._refusals.items()
            },
        }
        if "body" in self.parts:
            described["requestBody"] = {"required": not self.no_body, "content": _json(self.parts["body"])}
        return described


def endpoint(method: str, path: str, **more: Any) -> Callable[[Callable[..., Any]], Endpoint]:  # noqa: ANN401 - those of an endpoint
    """Declare a method as an endpoint: see :class:`Endpoint`."""
    return lambda call: Endpoint(method, path, call, **more)


def declared(owner: type) -> list[Endpoint]:
    """Return the endpoints that a class declares, in the order in which their paths are matched."""
    return [each for each in vars(owner).values() if isinstance(each, Endpoint)]


def endpoints_of(*owners: object) -> list[Endpoint]:
    """Return the endpoints of objects, which answer."""
    return [each.bound(owner) for owner in owners for each in declared(type(owner))]


def document(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the endpoints."""
    models = {Problem}.union(*(endpoint.models() for endpoint in endpoints))
    _, schemas = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template=_reference("{model}"),
    )
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = endpoint.described()
    return {
        "openapi": "3.1.0",
        "info": {"title": "Surelane's operator API", "version": version},
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "surelane"},
            },
        },
    }


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a field, where null is a field that is left out."""
    found = {key: value for key, value in schema.items() if key != "title"}
    possible = [each for each in found.get("anyOf", ()) if each != {"type": "null"}]
    if len(possible) == 1:
        del found["anyOf"]
        found |= possible[0]
    return {key: value for key, value in found.items() if (key, value) != ("default", None)}


def _model_of(annotation: object) -> type[BaseModel] | None:
    """Return the model in an annotation such as ``Model | None``; ``None``: it has none."""
    parts = get_args(annotation) or (annotation,)
    return next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None)


def _parameter(name: str, given: Given) -> dict[str, Any]:
    schema = dict(given.schema)
    parameter = {"name": name, "in": given.part, "required": given.required, "schema": schema}
    if schema.get("type") == "array":
        parameter |= {"style": "form", "explode": False}
        schema["description"] += "; several are separated by commas"
    return parameter


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _reference(model.__name__)}}}


def _reference(model: str) -> str:
    return f"#/components/schemas/{model}"
