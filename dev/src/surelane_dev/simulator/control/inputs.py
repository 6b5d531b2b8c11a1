"""The bodies of the control API's requests."""

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from surelane_dev.simulator.posting.sockets import Reason
from surelane_service.common.durations import Duration

Text = Annotated[str, Field(min_length=1, max_length=40_000)]


class Input(BaseModel):
    """A request's body. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class ByPerson(Input):
    """What a person does."""

    user: str | None = None
    """By name or id; by default the workspace's first person."""


class Attachment(Input):
    """A file that a person attaches to a message."""

    name: Text
    type: str
    content: Base64Bytes
    access: Literal["visible", "check_file_info", "access_denied", "file_not_found"] = "visible"
    """What the event says of it. If not ``visible``, it has the file's id alone, as of another organization's."""


class MessageInput(ByPerson):
    """A message that a person writes. Channels and users are names or ids. ``@name`` in the text is a mention."""

    text: Annotated[str, Field(max_length=40_000)]
    """It may be empty only beside a mention or files."""
    channel: str = "general"
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


class Pointed(ByPerson):
    """A reference to a message."""

    channel: str
    ts: str


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


class Placed(ByPerson):
    """A reference to a button or input: in a message, or in the view ``view_id``."""

    channel: str = ""
    ts: str = ""
    view_id: str = ""
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


class ShortcutInput(ByPerson):
    """The use of a shortcut. A ``ts`` names the message of a message's shortcut."""

    callback_id: Text
    channel: str = "general"
    ts: str = ""


class FunctionInput(Input):
    """A step of a workflow that asks the app to run its function."""

    callback_id: Text
    inputs: dict[str, Any] = Field(default_factory=dict)


class Home(ByPerson):
    """The opening of a tab of the app's *Home*."""

    tab: Literal["home", "messages"] = "home"


class Look(ByPerson):
    """A change of what a person is looking at while the app is open beside it."""

    channel: str
    thread_ts: str = ""
    """The thread of an app with the older assistant view."""


class Stop(ByPerson):
    """A press of the *Stop* that Slack shows while an agent's session is ``processing``."""

    channel: str
    thread_ts: str


class CommandInput(ByPerson):
    """A call of a slash command."""

    command: Annotated[str, Field(pattern=r"^/\S+$")]
    text: str = ""
    channel: str = "general"


class Submission(Input):
    """A modal that a person submits."""

    values: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """What the inputs hold, by ``block_id`` and ``action_id``: a text, a list of them, or Slack's own form."""


class Closing(Submission):
    """A modal that a person closes."""

    all: bool = False
    """Close those below it as well."""


class Joining(Input):
    """A user who joins a channel."""

    user: str


class Unanswered(Input):
    """Why the app answers nothing; empty: it can."""

    text: str


class Mention(Input):
    """A person's mention of the bot in a workspace's channel."""

    text: Text
    channel: str = "general"


class DisconnectInput(Input):
    """A disconnect of all connections."""

    reason: Reason | None = "refresh_requested"
    """What the app is told, a second before the end; ``null``: connections break without a word."""
    every: Duration | None = Field(default=None, ge=timedelta(milliseconds=100))
    """The time between two disconnects; ``null``: just this one, which also ends repeated ones."""
