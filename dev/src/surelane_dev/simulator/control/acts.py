"""Read the requests of the control API. A request that cannot be used gets an error."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from surelane_dev.simulator.posting.delivery import DeliveryAttempt, form_delivery
from surelane_dev.simulator.posting.payloads import Payloads
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.state import NotOfferedError
from surelane_dev.simulator.workspace.model import JSON, Channel, Message, User
from surelane_dev.simulator.workspace.workspace import Workspace

SIMULATOR = web.AppKey("simulator", Simulator)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Body = TypeVar("Body", bound=BaseModel | None)


class BadRequestError(Exception):
    """The request cannot be done; the message says why."""


@dataclass(frozen=True)
class Act(Generic[Body]):
    """A request: ``asked`` is its body. What it names is looked up, or refused with :class:`BadRequestError`."""

    request: web.Request
    asked: Body

    @property
    def simulator(self) -> Simulator:
        return self.request.app[SIMULATOR]

    @property
    def workspace(self) -> Workspace:
        """The workspace of the path, or of the query's ``team``; by default the demo workspace.

        An organization's id names its first workspace.
        """
        default = self.request.query.get("team", self.simulator.workspace.team_id)
        team = self.request.match_info.get("team", default)
        if (workspace := self.simulator.installs.named(team)) is None:
            raise BadRequestError(f"there is no workspace {team}")
        return workspace

    @property
    def channel(self) -> Channel:
        return channel_named(self.workspace, getattr(self.asked, "channel", ""))

    @property
    def user(self) -> User:
        """The person whom the body names: the first one by default."""
        return person_named(self.workspace, getattr(self.asked, "user", None))

    @property
    def message(self) -> Message:
        ts, messages = getattr(self.asked, "ts", ""), self.channel.messages
        if ts not in messages:
            raise BadRequestError(f"there is no message {ts} in {getattr(self.asked, 'channel', '')}")
        return messages[ts]

    @property
    def payloads(self) -> Payloads:
        """What the app gets as the person uses it."""
        return Payloads(self.workspace, self.simulator.interactions, self.user)

    def event(self, kind: str, **fields: object) -> JSON | None:
        """Send an event if the app is subscribed to it. Return its delivery."""
        inner = {"type": kind, **fields, "event_ts": self.workspace.next_ts()}
        return self.simulator.send_event(self.workspace, inner)


def act(
    method: str,
    path: str,
    answer: Callable[[Act[Any]], Awaitable[JSON]],
    body: type[BaseModel] | None = None,
    *,
    app: bool = False,
) -> web.RouteDef:
    """Return a route below ``/control``. ``body``: what it takes. ``app``: the workspace must have the app."""

    async def handle(request: web.Request) -> web.Response:
        asked = None if body is None else await _read(request, body)
        given = Act(request, asked)
        if app:
            check_app(given.simulator, given.workspace)
        return web.json_response(await answer(given))

    return web.route(method, f"/control/{path}", handle)


@web.middleware
async def explain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 400 with the reason if a body cannot be used, or names an unknown object."""
    try:
        return await handler(request)
    except (BadRequestError, NotOfferedError) as error:
        return web.json_response({"error": str(error)}, status=400)
    except ValidationError as error:
        details = json.loads(error.json(include_url=False, include_context=False, include_input=False))
        lines = [f"{'.'.join(map(str, detail['loc'])) or 'body'}: {detail['msg']}" for detail in details]
        return web.json_response({"error": "; ".join(lines)}, status=400)


async def _read(request: web.Request, body: type[BaseModel]) -> BaseModel:
    """Read a body of ``application/json`` only, because a foreign page in the same browser cannot send that."""
    if request.content_type != "application/json":
        raise BadRequestError("the body must be application/json")
    return body.model_validate_json(await request.read())


def check_app(simulator: Simulator, workspace: Workspace) -> None:
    """Refuse a use of the app in a workspace without it."""
    if not simulator.installs.has_app(workspace):
        raise BadRequestError(f"{workspace.name} has not installed the app")


def channel_named(workspace: Workspace, name: str) -> Channel:
    """Return a channel by name or id."""
    channel = workspace.channel(name)
    if channel is None:
        raise BadRequestError(f"there is no channel {name}")
    return channel


def person_named(workspace: Workspace, name: str | None) -> User:
    """Return a user who is not the bot, by name or id: the first one by default."""
    user = workspace.people()[0] if name is None else workspace.user(name)
    if user is None or user.is_bot:
        raise BadRequestError(f"there is no person {name}")
    return user


async def interact(simulator: Simulator, workspace: Workspace, payload: JSON) -> DeliveryAttempt:
    """Post an interaction's payload, once, for the installation of a workspace."""
    installed = payload | {"is_enterprise_install": simulator.installs.is_wide(workspace)}
    form = {"payload": json.dumps(installed)}
    delivery = form_delivery(payload["type"], payload.get("trigger_id"), form, workspace.team_id)
    return await simulator.sender.send_once(delivery)


def attempted(attempt: DeliveryAttempt, **more: object) -> JSON:
    """Return the answer that tells the result of an attempt."""
    seconds = round(attempt.seconds * 1000, 1)
    return {"status": attempt.status, "problem": attempt.problem, "ms": seconds, **more}
