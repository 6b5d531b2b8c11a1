"""The OpenAPI document, made from the routes and their models, so that it cannot drift from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from surelane_operator.api.schemas import Problem

_REFUSALS = {
    "400": "the request cannot be read",
    "401": "the token is missing or wrong",
    "503": "the database is away",
}
_REF = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One route: how it is called and what it answers.

    Attributes:
        path: with its variables in braces; their schema is ``variables``'.
        query, body: the models that the query and the JSON body are read into.
        answer: the model of a 2xx answer; ``None``: 204, no content.
        refusals: statuses beside those every route has, and what they mean.
    """

    method: str
    path: str
    name: str
    summary: str
    answer: type[BaseModel] | None
    status: int = 200
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    variables: dict[str, dict[str, Any]] | None = None
    refusals: dict[str, str] | None = None


def document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of the operations."""
    models = {model for operation in operations for model in (operation.answer, operation.body) if model} | {
        Problem
    }
    _, schemas = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template=_REF,
    )
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Surelane's operator API", "version": version},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*_variables(operation), *_query(operation)],
        "responses": {
            str(operation.status): _answer(operation.answer),
            **{
                status: {"description": meaning, "content": _json(Problem)}
                for status, meaning in {**_REFUSALS, **(operation.refusals or {})}.items()
            },
        },
    }
    if operation.body:
        described["requestBody"] = {"required": True, "content": _json(operation.body)}
    return described


def _variables(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in (operation.variables or {}).items()
    ]


def _query(operation: Operation) -> list[dict[str, Any]]:
    if operation.query is None:
        return []
    schema = operation.query.model_json_schema()
    return [_parameter(name, field) for name, field in schema["properties"].items()]


def _parameter(name: str, field: dict[str, Any]) -> dict[str, Any]:
    alternatives = [entry for entry in field.pop("anyOf", []) if entry.get("type") != "null"]
    if alternatives:
        field = {**field, **alternatives[0]}
    field = {key: value for key, value in field.items() if not (key == "default" and value is None)}
    parameter = {"name": name, "in": "query", "required": False, "schema": field}
    if field.get("type") == "array":  # separated by commas
        parameter |= {"style": "form", "explode": False}
    return parameter


def _answer(model: type[BaseModel] | None) -> dict[str, Any]:
    if model is None:
        return {"description": "done"}
    return {"description": (model.__doc__ or model.__name__).splitlines()[0], "content": _json(model)}


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
