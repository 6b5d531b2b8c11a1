"""What the control API takes, and how a request that cannot be used is answered."""

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
    """The request makes no sense as things stand; the message says why."""


class Input(BaseModel):
    """A request's body; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Said(Input):
    """Somebody writes. Channels and users go by name or id; ``@name`` in the text is a mention."""

    text: Text
    channel: str = "general"
    user: str = "ada"
    thread_ts: str | None = None
    mention: bool = False
    """Address the bot, in a channel, where the text does not."""
    wait: bool = False
    """Answer only when the app has answered each event once."""


class Pointed(Input):
    """Somebody points at a message."""

    channel: str
    ts: str
    user: str = "ada"


class Reaction(Pointed):
    """Somebody adds a reaction, or takes it back."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_+'-]+$")]


class Rewrite(Pointed):
    """Somebody edits what they wrote."""

    text: Text


class Press(Pointed):
    """Somebody presses a button of a message."""

    action_id: str


class Command(Input):
    """Somebody calls a slash command."""

    command: Annotated[str, Field(pattern=r"^/\S+$")]
    text: str = ""
    channel: str = "general"
    user: str = "ada"


class Submission(Input):
    """Somebody submits or closes a modal."""

    values: JSON = Field(default_factory=dict)
    """What was filled in, as Slack's ``state.values``."""


class Joining(Input):
    """Somebody is brought into a channel."""

    user: str


@web.middleware
async def explain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 400 with the reason if a body, or an object that it names, cannot be used."""
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

    Only ``application/json`` is taken: a foreign page in the same browser cannot send that.
    """
    if request.content_type != "application/json":
        raise RefusedError("the body must be application/json")
    return kind.model_validate_json(await request.read())


def channel_named(simulator: Simulator, name: str) -> Channel:
    """A channel by name or id."""
    channel = simulator.workspace.channel(name)
    if channel is None:
        raise RefusedError(f"there is no channel {name}")
    return channel


def person_named(simulator: Simulator, name: str) -> User:
    """A user who is not the bot, by name or id."""
    user = simulator.workspace.user(name)
    if user is None or user.is_bot:
        raise RefusedError(f"there is no person {name}")
    return user


def message_at(simulator: Simulator, pointed: Pointed) -> Message:
    """The message that somebody points at."""
    message = channel_named(simulator, pointed.channel).messages.get(pointed.ts)
    if message is None:
        raise RefusedError(f"there is no message {pointed.ts} in {pointed.channel}")
    return message
