"""Read a call of the Web API and its arguments, or raise Slack's error."""

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from surelane_dev.simulator.files import Files
from surelane_dev.simulator.installs import Installs
from surelane_dev.simulator.interactions import Interactions
from surelane_dev.simulator.manifest import DOCUMENTED, Manifest
from surelane_dev.simulator.posting.sockets import AppConnections
from surelane_dev.simulator.sessions import AgentSessions
from surelane_dev.simulator.workspace.executions import Executions
from surelane_dev.simulator.workspace.model import JSON, Channel, Message
from surelane_dev.simulator.workspace.scheduled import Scheduled
from surelane_dev.simulator.workspace.workspace import Workspace

MAX_LIMIT = 1000
_TS = re.compile(r"\d{1,12}\.\d{1,6}")


class ApiError(Exception):
    """A failed call. The message is Slack's name of the error; ``details`` are further fields of the answer."""

    def __init__(self, error: str, **details: object) -> None:
        super().__init__(error)
        self.details = details


def invalid_arguments(*problems: str) -> ApiError:
    """Return the error for missing or wrong arguments, with one line for each."""
    lines = [f"[ERROR] {problem}" for problem in problems]
    return ApiError("invalid_arguments", response_metadata={"messages": lines})


def invalid_blocks(*problems: str) -> ApiError:
    """Return the error for blocks that Slack refuses, with one line for each mistake."""
    lines = [f"[ERROR] {problem}" for problem in problems]
    return ApiError("invalid_blocks", errors=list(problems), response_metadata={"messages": lines})


@dataclass(frozen=True, slots=True)
class SlackState:
    """The state that calls read and change."""

    workspace: Workspace
    interactions: Interactions
    manifest: Manifest = DOCUMENTED
    events: frozenset[str] = DOCUMENTED.events
    """The events that the app is subscribed to."""
    sessions: AgentSessions = field(default_factory=AgentSessions)
    files: Files = field(default_factory=Files)
    installs: Installs = field(default_factory=Installs)
    sockets: AppConnections = field(default_factory=AppConnections)
    scheduled: Scheduled = field(default_factory=Scheduled)
    executions: Executions = field(default_factory=Executions)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments, as JSON or as texts of a form. A malformed one raises the :class:`ApiError` that is named."""

    arguments: Mapping[str, object]

    def text(self, name: str) -> str:
        """Return an argument as text; empty if it is missing."""
        value = self.arguments.get(name)
        return "" if value is None else value if isinstance(value, str) else json.dumps(value)

    def flag(self, name: str) -> bool:
        """Return an argument as a truth value: ``true``, ``1`` and JSON's ``true`` are true."""
        return self.text(name).lower() in {"1", "true"}

    def number(self, name: str, default: int) -> int:
        """Return an argument as a count between 1 and 1000, or raise ``invalid_limit``."""
        text = self.text(name) or str(default)
        if not text.isdecimal() or not 0 < int(text) <= MAX_LIMIT:
            raise ApiError("invalid_limit")
        return int(text)

    def mapping(self, name: str, error: str) -> JSON | None:
        """Return an argument as a JSON object; ``None`` if it is missing."""
        value = self._decoded(name, error)
        if value is not None and not isinstance(value, dict):
            raise ApiError(error)
        return value

    def objects(self, name: str, error: str) -> list[JSON]:
        """Return an argument as a list of JSON objects; empty if it is missing."""
        items = self._decoded(name, error) or []
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise ApiError(error)
        return items

    def typed_objects(self, name: str, error: str) -> list[JSON]:
        """Return an argument as a list of objects with a type each: blocks or chunks."""
        items = self.objects(name, error)
        if not all(isinstance(item.get("type"), str) for item in items):
            raise ApiError(error)
        return items

    def _decoded(self, name: str, error: str) -> object | None:
        value = self.arguments.get(name)
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value) if value else None
        except ValueError:
            raise ApiError(error) from None


@dataclass(frozen=True, slots=True)
class MethodCall(Arguments):
    """A call with a valid token and all required arguments, and the state that it reads and changes."""

    slack: SlackState
    token: str | None = None

    @property
    def workspace(self) -> Workspace:
        return self.slack.workspace

    def channel(self, name: str = "channel") -> Channel:
        """Return the channel that an argument names by id or ``#name``, or raise ``channel_not_found``."""
        channel = self.workspace.channel(self.text(name))
        if channel is None and (user := self.workspace.users.get(self.text(name))) and not user.is_bot:
            channel = self.workspace.direct_messages(user.id)
        if channel is None:
            raise ApiError("channel_not_found")
        return channel

    def joined_channel(self, name: str = "channel") -> Channel:
        """Return the channel that an argument names. Raise ``not_in_channel`` if the bot is no member."""
        channel = self.channel(name)
        if self.workspace.bot.id not in channel.members:
            raise ApiError("not_in_channel")
        return channel

    def message(self, channel: Channel, name: str = "ts") -> Message:
        """Return the message of a channel that an argument names, or raise ``message_not_found``."""
        message = channel.messages.get(self.text(name))
        if message is None or message.subtype == "tombstone" or message.visible_to is not None:
            raise ApiError("message_not_found")
        return message

    def permalink(self, message: Message) -> str:
        """Return a message's address on the simulator's page."""
        return f"{self.slack.interactions.public_url}/#{message.channel}/{message.ts}"


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the Web API: its function, its scope, its arguments and its rate limit."""

    run: Callable[[MethodCall], JSON]
    required: tuple[str, ...] = ()
    scope: str | None = None
    per_minute: int | None = 20
    """Calls in any minute; Slack's Tier 2 by default. ``None``: only a limit per channel holds."""
    reads_json: bool = True
    """Whether it takes a JSON body. Slack's older reading methods take form fields only."""
    needs_token: bool = True
    takes_user_token: bool = False
    takes_app_token: bool = False
    """Whether it takes an app-level token, and no other one."""


@dataclass(frozen=True, slots=True)
class RequestContent:
    """The content of a request: arguments, token, and warnings for the answer."""

    arguments: dict[str, object]
    token: str | None
    warnings: list[str] = field(default_factory=list)


async def read(request: web.Request, method: Method) -> RequestContent:
    """Read a request as Slack does. Raise :class:`ApiError` if its body cannot be read."""
    query: dict[str, object] = {name: value for name, value in request.query.items() if name != "token"}
    body, is_json = await _body(request)
    form_token = None if is_json else body.pop("token", None)
    if is_json and not method.reads_json:
        body = {}
    header = request.headers.get("Authorization")
    if header and header.startswith("Basic "):
        body |= _client(header)
        header = None
    token = _bearer(header) if header else form_token
    warnings = ["missing_charset"] if is_json and not request.charset else []
    return RequestContent(query | body, token if isinstance(token, str) else None, warnings)


async def _body(request: web.Request) -> tuple[dict[str, object], bool]:
    raw = await request.read()
    if not raw:
        return {}, False
    if "Content-Type" not in request.headers:
        raise ApiError("missing_post_type")
    if request.content_type == "application/json":
        return _json_object(raw), True
    if request.content_type not in {"application/x-www-form-urlencoded", "multipart/form-data"}:
        raise ApiError("invalid_post_type")
    try:
        return {name: value for name, value in (await request.post()).items()}, False  # noqa: C416 - a MultiDict
    except ValueError:
        raise ApiError("invalid_form_data") from None


def _json_object(raw: bytes) -> dict[str, object]:
    try:
        body = json.loads(raw)
    except ValueError:
        raise ApiError("invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError("json_not_object")
    return body


def _client(header: str) -> dict[str, object]:
    """Return the app's id and secret, which may stand in an HTTP Basic header."""
    try:
        client_id, _, secret = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return {}
    return {"client_id": client_id, "client_secret": secret}


def _bearer(header: str) -> str:
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else header


def is_ts(text: str) -> bool:
    """Return whether a text has the form of a message's ``ts``."""
    return _TS.fullmatch(text) is not None
