"""Endpoints of ``/v1``: a function's signature says how its request is read and what it answers, and documents it."""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, get_args

from aiohttp import web
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
from surelane_operator.console.access.guard import refusal
from surelane_operator.console.access.viewer import EVENT_STREAM, Role, Viewer, viewer_of
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


class Refused(Exception):  # noqa: N818 - it is an answer, not a failure
    """Answer a request with an error."""

    def __init__(self, status: int, error: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.headers = headers


class Endpoint:
    """One method of one path, and the function that answers it.

    The function's parameters ``path``, ``query`` and ``body`` are models. It returns a model, or nothing or true for
    204. ``None`` instead of a model, or false, is the refusal 404. Its name and docstring are the document's.
    By default viewers may call what reads, and operators what changes. ``refusals`` come beside :data:`ALWAYS`.
    """

    def __init__(
        self,
        method: str,
        path: str,
        call: Callable[..., Awaitable[BaseModel | bool | None]],
        *,
        status: int | None = None,
        refusals: Mapping[int, str] | None = None,
        role: Role | None = None,
    ) -> None:
        signature = inspect.signature(call)
        first, *others = call.__name__.split("_")
        self.id = first + "".join(word.capitalize() for word in others)
        self.name = call.__name__
        self.method, self.path, self._call = method, path, call
        self._answer = _model_of(signature.return_annotation)
        self._status = status or (200 if self._answer else 204)
        self.parts: Mapping[str, type[BaseModel]] = {
            name: parameter.annotation for name, parameter in signature.parameters.items()
        }
        body = self.parts.get("body")
        self.role: Role = role or ("viewer" if method == "GET" else "operator")
        forbidden = {403: FORBIDDEN} if self.role == "operator" else {}
        self._refusals = ALWAYS | forbidden | ({413: TOO_LARGE} if body else {}) | dict(refusals or {})
        self._no_body = b""
        """What is read where the request has no body: that is allowed where no field is required."""
        if body and not any(field.is_required() for field in body.model_fields.values()):
            self._no_body = b"{}"
        fields: dict[str, Any] = {
            name: (Json[model] if name == "body" else model, ...)  # type: ignore[misc, valid-type]
            for name, model in self.parts.items()
        }
        self._input = create_model(self.id, **fields)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Read the request, call the function and answer, also with what refuses it."""
        try:
            return await self._answered(request)
        except Refused as refused:
            return refusal(refused.status, refused.error, refused.headers)

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        given: dict[str, object] = {"path": dict(request.match_info), "query": dict(request.query)}
        viewer = viewer_of(request)
        if "body" in self.parts and viewer.may(self.role):
            try:
                given["body"] = await request.read() or self._no_body
            except web.HTTPRequestEntityTooLarge:
                raise Refused(413, TOO_LARGE) from None
        found = await self.call(viewer, given)
        if found is None:
            return web.Response(status=self._status)
        return web.Response(
            text=found.model_dump_json(), status=self._status, content_type="application/json"
        )

    async def call(self, viewer: Viewer, given: Mapping[str, object]) -> BaseModel | None:
        """Call the function with the fields of ``path`` and ``query`` as text, and the ``body`` as JSON, or refuse."""
        if not viewer.may(self.role):
            raise Refused(403, FORBIDDEN)
        try:
            values = dict(self._input.model_validate(given))
        except ValidationError as error:
            complaints = [
                f"{'.'.join(map(str, each['loc'][1:])) or each['loc'][0]}: {each['msg']}"
                for each in error.errors(include_url=False)
            ]
            raise Refused(400, "; ".join(complaints)) from None
        try:
            found = await self._call(**values)
        except InvalidInput as error:
            raise Refused(400, f"a value cannot be stored: {error}") from error
        except Conflict as error:
            raise Refused(409, IN_THE_WAY) from error
        except DatabaseUnavailable as error:
            _logger.warning("database away", **described(error), endpoint=self.id)
            raise Refused(503, "the database is away", {"Retry-After": "2"}) from error
        except Forbidden as error:
            if error.report.meant:
                raise Refused(403, str(error)) from error
            _logger.warning(
                "the API's role is no member of agent_operator", **described(error), endpoint=self.id
            )
            raise Refused(503, NO_MEMBER) from error
        except DatabaseRefused as error:
            _logger.warning("the database refuses this", **described(error), endpoint=self.id)
            raise Refused(503, f"the database refuses this: {told(error)}", {"Retry-After": "2"}) from error
        if found is False or (found is None and self._answer):
            raise Refused(404, self._refusals[404])
        return found if isinstance(found, BaseModel) else None

    def description(self) -> str:
        return inspect.getdoc(self._call) or self.id

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
            "summary": self.description().splitlines()[0].rstrip("."),
            "x-surelane-role": self.role,
            "parameters": [
                _parameter(name, place, schema, required=name in model.get("required", ()))
                for place in ("path", "query")
                if place in self.parts
                for model in [self.parts[place].model_json_schema()]
                for name, schema in model["properties"].items()
            ],
            "responses": {str(self._status): answer}
            | {
                str(status): {"description": meaning, "content": _json(Problem)}
                for status, meaning in self._refusals.items()
            },
        }
        if "body" in self.parts:
            described["requestBody"] = {"required": not self._no_body, "content": _json(self.parts["body"])}
        return described


class StreamEndpoint(Endpoint):
    """A read whose answer ``send`` streams, from ``after`` or the header ``Last-Event-ID`` on, which browsers send."""

    def __init__(
        self,
        path: str,
        call: Callable[..., Awaitable[BaseModel | None]],
        send: Callable[[web.Request, Any], Awaitable[web.StreamResponse]],
        **more: Any,  # noqa: ANN401 - those of an endpoint
    ) -> None:
        super().__init__("GET", path, call, **more)
        self._send = send

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        latest = request.headers.get("Last-Event-ID")
        query = dict(request.query) | ({"after": latest} if latest else {})
        found = await self.call(viewer_of(request), {"path": dict(request.match_info), "query": query})
        return await self._send(request, found)

    def models(self) -> list[type[BaseModel]]:
        return []

    def described(self) -> dict[str, Any]:
        described = super().described()
        content = {EVENT_STREAM: {"schema": {"type": "string"}}}
        described["responses"]["200"] = {"description": "server-sent events", "content": content}
        return described


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


def server_sent(sort: str, data: object) -> bytes:
    """Format a server-sent event. JSON has no line breaks, which would end its field."""
    return f"event: {sort}\ndata: {json.dumps(data)}\n\n".encode()


def plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a field of a query, where null is a field that is left out."""
    found = {key: value for key, value in schema.items() if key not in ("anyOf", "title")}
    for alternative in schema.get("anyOf", ()):
        if alternative != {"type": "null"}:
            found |= alternative
    return {key: value for key, value in found.items() if (key, value) != ("default", None)}


def _model_of(annotation: object) -> type[BaseModel] | None:
    """Return the model in an annotation such as ``Model | None``; ``None``: it has none."""
    parts = get_args(annotation) or (annotation,)
    return next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None)


def _parameter(name: str, place: str, schema: Mapping[str, Any], *, required: bool) -> dict[str, Any]:
    found = plain(schema)
    parameter = {"name": name, "in": place, "required": required, "schema": found}
    if found.get("type") == "array":
        parameter |= {"style": "form", "explode": False}  # separated by commas
    return parameter


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _reference(model.__name__)}}}


def _reference(model: str) -> str:
    return f"#/components/schemas/{model}"
