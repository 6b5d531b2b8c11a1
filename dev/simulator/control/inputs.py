"""Read the requests of the control API, and answer those that cannot be used."""

import json
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dev.simulator.simulator import Simulator
from dev.simulator.workspace.model import JSON, Channel, Message, User

SIMULATOR = web.AppKey("simulator", Simulator)

Text = Annotated[str, Field(min_length=1, max_length=40_000)]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Body = TypeVar("Body", bound=BaseModel)


class RefusedError(Exception):
    """The request cannot be done; the message says why."""


class Input(BaseModel):
    """A request's body. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Said(Input):
    """A message that a person writes. Channels and users are names or ids. ``@name`` in the text is a mention."""

    text: Text
    channel: str = "general"
    user: str = "ada"
    thread_ts: str | None = None
    mention: bool = False
    """Mention the bot in a channel if the text does not."""
    wait: bool = False
    """Wait with the answer until the app has answered each event once."""


class Pointed(Input):
    """A reference to a message."""

    channel: str
    ts: str
    user: str = "ada"


class Reaction(Pointed):
    """A reaction that a person adds or removes."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_+'-]+$")]


class Rewrite(Pointed):
    """An edit of a person's own message."""

    text: Text


class Press(Pointed):
    """A press of a message's button."""

    action_id: str


class Command(Input):
    """A call of a slash command."""

    command: Annotated[str, Field(pattern=r"^/\S+$")]
    text: str = ""
    channel: str = "general"
    user: str = "ada"


class Submission(Input):
    """A modal that a person submits or closes."""

    values: JSON = Field(default_factory=dict)
    """The values of the inputs, as Slack's ``state.values``."""


class Joining(Input):
    """A user who joins a channel."""

    user: str


@web.middleware
async def explain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 400 with the reason if a body cannot be used, or names an unknown object."""
    try:
        return await handler(request)
    except RefusedError as error:
        return web.json_response({"error": str(error)}, status=400)
    except ValidationError as error:
        details = json.loads(error.json(include_url=False, include_context=False, include_input=False))
        lines = [f"{'.'.join(map(str, detail['loc'])) or 'body'}: {detail['msg']}" for detail in details]
        return web.json_response({"error": "; ".join(lines)}, status=400)


async def body_of(request: web.Request, kind: type[Body]) -> Body:
    """Read a body of JSON.

    Take ``application/json`` only, because a foreign page in the same browser cannot send that.
    """
    if request.content_type != "application/json":
        raise RefusedError("the body must be application/json")
    return kind.model_validate_json(await request.read())


def channel_named(simulator: Simulator, name: str) -> Channel:
    """Return a channel by name or id."""
    channel = simulator.workspace.channel(name)
    if channel is None:
        raise RefusedError(f"there is no channel {name}")
    return channel


def person_named(simulator: Simulator, name: str) -> User:
    """Return a user who is not the bot, by name or id."""
    user = simulator.workspace.user(name)
    if user is None or user.is_bot:
        raise RefusedError(f"there is no person {name}")
    return user


def message_at(simulator: Simulator, pointed: Pointed) -> Message:
    """Return the message that a request refers to."""
    message = channel_named(simulator, pointed.channel).messages.get(pointed.ts)
    if message is None:
        raise RefusedError(f"there is no message {pointed.ts} in {pointed.channel}")
    return message
