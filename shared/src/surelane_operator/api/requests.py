"""Reading requests to the operator's API, and what is answered to those that cannot be read."""

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from surelane_operator.api import schemas
from surelane_operator.operations import Cursor
from surelane_operator.timeline import trace_of

Model = TypeVar("Model", bound=BaseModel)
Shown = TypeVar("Shown", bound=schemas.ListedJob)


class Refused(Exception):  # noqa: N818 - it is an answer, not a failure
    """A request that is answered with an error."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status
        self.error = error


def problem(status: int, error: str, headers: dict[str, str] | None = None) -> web.Response:
    """An answer that says why a request was refused."""
    return web.json_response({"error": error}, status=status, headers=headers)


def read(model: type[Model], value: object) -> Model:
    """Reads a query. Raises Refused."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise Refused(
            400, "; ".join(_complaint(problem) for problem in error.errors(include_url=False))
        ) from None


def _complaint(problem: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails is private to pydantic-core
    return f"{'.'.join(str(part) for part in problem['loc']) or 'body'}: {problem['msg']}"


async def read_body(model: type[Model], request: web.Request) -> Model:
    """Reads a JSON body. Raises Refused."""
    try:
        return model.model_validate_json(await request.read())
    except ValidationError as error:
        raise Refused(
            400, "; ".join(_complaint(problem) for problem in error.errors(include_url=False))
        ) from None


def identity_of(request: web.Request) -> int:
    """The event's id in the path. Raises Refused."""
    text = request.match_info["id"]
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and 1 <= int(text) < 2**63):
        raise Refused(400, "id: an event's id is a whole number above 0")
    return int(text)


def name_of(request: web.Request, variable: str) -> str:
    """A name in the path. Raises Refused."""
    text = request.match_info[variable]
    if not re.fullmatch(schemas.NAME, text):
        raise Refused(400, f"{variable}: 1 to 200 characters, none of them a control character")
    return text


def job_of(model: type[Shown], row: dict[str, Any]) -> Shown:
    """An event as the API answers it, whole or as a line of a list."""
    run_at = row["run_at"]
    visible = run_at if isinstance(run_at, datetime) and run_at.year < 9999 else None
    return model.model_validate({**row, "run_at": visible, "trace_id": trace_of(row)})


def position_of(row: dict[str, Any]) -> str:
    """The cursor of the page that follows a row."""
    moment = row["finished_at"].isoformat() if row["finished_at"] else ""
    return base64.urlsafe_b64encode(f"{row['id']} {moment}".encode()).decode().rstrip("=")


def cursor_of(text: str) -> Cursor:
    """What a cursor says. Raises Refused."""
    try:
        identity, _, moment = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().partition(" ")
        finished_at = datetime.fromisoformat(moment).astimezone(UTC) if moment else None
        return Cursor(_bounded(int(identity)), finished_at)
    except (ValueError, OverflowError, binascii.Error):
        raise Refused(400, "cursor: not one that this API gave") from None


def _bounded(identity: int) -> int:
    if not 0 < identity < 2**63:
        raise ValueError(identity)
    return identity
