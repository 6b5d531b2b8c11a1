"""Read the requests of the control API, and answer those that cannot be used."""

import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, TypeVar

from aiohttp import web
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, ValidationError

from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.state import NotOfferedError
from surelane_dev.simulator.workspace.model import Channel, Message, User
from surelane_dev.simulator.workspace.workspace import Workspace

SIMULATOR = web.AppKey("simulator", Simulator)

Text = Annotated[str, Field(min_length=1, max_length=40_000)]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Body = TypeVar("Body", bound=BaseModel)


class BadRequestError(Exception):
    """The request cannot be done; the message says why."""


class Input(BaseModel):
    """A request's body. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Attachment(Input):
    """A file that a person attaches to a message."""

    name: Text
    type: str
    content: Base64Bytes
    access: Literal["visible", "check_file_info", "access_denied", "file_not_found"] = "visible"
    """What the event says of it. If not ``visible``, it has the file's id alone, as of another organization's."""


class MessageInput(Input):
    """A message that a person writes. Channels and users are names or ids. ``@name`` in the text is a mention."""

    text: Annotated[str, Field(max_length=40_000)]
    """It may be empty only beside a mention or files."""
    channel: str = "general"
    user: str | None = None
    bot: Text | None = None
    """The name of another app's bot that writes in place of a person."""
    workflow: Text | None = None
    """The name of a workflow that writes in place of a person."""
    slackbot: bool = False
    """Let Slackbot write in place of a person, as for a reminder."""
    app: Text | None = None
    """The name of another app through which the person writes."""
    me: bool = False
    """Write it as ``/me`` does."""
    thread_ts: str | None = None
    broadcast: bool = False
    """Show a reply in the channel, too."""
    files: Annotated[list[Attachment], Field(max_length=10)] = Field(default_factory=list)
    mention: bool = False
    """Mention the bot in a channel if the text does not."""
    wait: bool = False
    """Wait with the answer until the app has answered each event once."""


class Pointed(Input):
    """A reference to a message."""

    channel: str
    ts: str
    user: str | None = None


class Entity(Pointed):
    """A click on a Work Object that the app shows below a message."""

    url: Text
    """The link in the message."""


class Reaction(Pointed):
    """A reaction that a person adds or removes."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_+'-]+$")]


class Rewrite(Pointed):
    """An edit of a person's own message."""

    text: Text


class Placed(Input):
    """A reference to a button or input: in a message, or in the view ``view_id``."""

    channel: str = ""
    ts: str = ""
    view_id: str = ""
    user: str | None = None
    action_id: str
    block_id: str | None = None
    """Needed only if two blocks have the same ``action_id``."""
    values: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """What the other inputs hold, as in a submission."""


class Press(Placed):
    """A press of a button, or a change of an input."""

    value: str | list[str] | None = None
    """What was chosen or entered. A single button needs none."""


class Typed(Placed):
    """Letters that a person types into a menu that asks the app for its options."""

    query: str = ""


class ShortcutInput(Input):
    """The use of a shortcut. A ``ts`` names the message of a message's shortcut."""

    callback_id: Text
    user: str | None = None
    channel: str = "general"
    ts: str = ""


class FunctionInput(Input):
    """A step of a workflow that asks the app to run its function."""

    callback_id: Text
    inputs: dict[str, Any] = Field(default_factory=dict)


class Home(Input):
    """The opening of a tab of the app's *Home*."""

    user: str | None = None
    tab: Literal["home", "messages"] = "home"


class Look(Input):
    """A change of what a person is looking at while the app is open beside it."""

    channel: str
    user: str | None = None
    thread_ts: str = ""
    """The thread of an app with the older assistant view."""


class Stop(Input):
    """A press of the *Stop* that Slack shows while an agent's session is ``processing``."""

    channel: str
    thread_ts: str
    user: str | None = None


class CommandInput(Input):
    """A call of a slash command."""

    command: Annotated[str, Field(pattern=r"^/\S+$")]
    text: str = ""
    channel: str = "general"
    user: str | None = None


class Submission(Input):
    """A modal that a person submits."""

    values: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """What the inputs hold, by ``block_id`` and ``action_id``: a text, a list of them, or Slack's own form."""


class Closing(Submission):
    """A modal that a person closes."""

    all: bool = False
    """Close those below it as well."""


class Filling(Input):
    """A dialog that a person submits or cancels."""

    user: str | None = None
    values: dict[str, str | None] = Field(default_factory=dict)
    """What the inputs hold, by name."""


class Joining(Input):
    """A user who joins a channel."""

    user: str


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


async def body_of(request: web.Request, kind: type[Body]) -> Body:
    """Read a body of JSON.

    Take ``application/json`` only, because a foreign page in the same browser cannot send that.
    """
    if request.content_type != "application/json":
        raise BadRequestError("the body must be application/json")
    return kind.model_validate_json(await request.read())


def workspace_of(request: web.Request) -> Workspace:
    """Return the workspace that the query names as ``team``: the demo workspace by default.

    An organization's id names its first workspace.
    """
    simulator = request.app[SIMULATOR]
    team = request.query.get("team", simulator.workspace.team_id)
    for workspace in simulator.installs.workspaces.values():
        if team in (workspace.team_id, workspace.enterprise_id):
            return workspace
    raise BadRequestError(f"there is no workspace {team}")


def workspace_with_app(request: web.Request) -> Workspace:
    """Return the workspace that a request names, if it has the app."""
    workspace = workspace_of(request)
    check_app(request.app[SIMULATOR], workspace)
    return workspace


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


def message_at(workspace: Workspace, pointed: Pointed | Placed | ShortcutInput) -> Message:
    """Return the message that a request refers to."""
    message = channel_named(workspace, pointed.channel).messages.get(pointed.ts)
    if message is None:
        raise BadRequestError(f"there is no message {pointed.ts} in {pointed.channel}")
    return message
