"""Let people act in the simulated Slack. Each act returns once the bot has done what follows from it."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from surelane_dev.simulator.app_answers import each_option
from surelane_dev.simulator.client import SimulatorClient
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.workspace.blocks import elements_of, find_element
from surelane_dev.simulator.workspace.model import JSON, Channel, Message
from surelane_dev.testing.story import Story

Stories = Callable[[], list[Story]]


@dataclass(frozen=True)
class Sent:
    """What a person did, and what the bot replied to it."""

    what: str
    """In words, for messages."""
    channel: Channel
    ts: str
    thread: str | None = None
    """The thread in which replies count; ``None``: they count anywhere in the channel."""
    message: Message | None = None
    """The message that the person wrote, if it was one."""
    answer: JSON = field(default_factory=dict)
    """What Slack's client shows: the HTTP ``status``, the ``problem``, and ``errors`` of a modal's inputs."""
    stories: Stories = list
    """Return where the test's events are now."""
    direct: Channel | None = None
    """The person's direct messages, where late answers to a command or an interaction go."""

    @property
    def replies(self) -> list[Message]:
        """The bot's messages since then, in the message's thread or in the channel, oldest first.

        To what is no message, the bot may also answer in direct messages. What only shows an agent's tasks is left out.
        """
        rooms = {room.id: room for room in (self.channel, self.direct) if room is not None}.values()
        found = (message for room in rooms for message in room.messages.values() if self._answers(message))
        return sorted(found, key=lambda message: message.ts)

    @property
    def beside(self) -> list[Message]:
        """What the bot wrote since then in the channel, where replies count in a thread alone."""
        since = [each for each in self.channel.messages.values() if each.by_app and each.ts > self.ts]
        return [each for each in since if not each.only_tasks and not self._answers(each)]

    def _answers(self, message: Message) -> bool:
        if not message.by_app or message.ts <= self.ts or message.only_tasks:
            return False
        if self.direct is not None and message.visible_to not in (None, self.direct.peer):
            return False  # somebody else alone sees it
        in_place = self.thread is None or message.thread_ts == self.thread
        return in_place or (self.channel.is_im and not message.is_reply)


On = Sent | Message | None
"""A message, or what led to one."""


class Slack:
    """The simulated Slack. Users and channels go by their names.

    The people are ``ada``, ``grace`` and ``katherine``; the bot is in the channels ``general`` and ``support``.
    """

    def __init__(
        self,
        simulator: Simulator,
        client: SimulatorClient,
        idle: Callable[[], Awaitable[None]],
        stories: Stories,
    ) -> None:
        self.simulator = simulator
        """The simulator itself, for what has no method here."""
        self._client = client
        self._idle = idle
        self._stories = stories

    async def mention(
        self, text: str, *, channel: str = "general", user: str = "ada", thread: On = None, **form: str | bool
    ) -> Sent:
        """Mention the bot in a channel, or in the thread of an earlier message.

        ``form``: an unusual one: ``me=True`` as by ``/me``, ``broadcast=True`` for a reply that the channel shows, too;
        ``app="NAME"`` through another app; in place of a person ``bot="NAME"``, ``workflow="NAME"``, ``slackbot=True``.
        """
        return await self._say(text, thread, channel=channel, user=user, mention=True, **form)

    async def message(
        self, text: str, *, channel: str = "general", user: str = "ada", thread: On = None, **form: str | bool
    ) -> Sent:
        """Write in a channel without mentioning the bot. ``form``: as of :meth:`mention`."""
        return await self._say(text, thread, channel=channel, user=user, **form)

    async def direct_message(
        self, text: str, *, user: str = "ada", thread: On = None, **form: str | bool
    ) -> Sent:
        """Write to the bot in direct messages. ``form``: as of :meth:`mention`."""
        return await self._say(text, thread, channel=self._direct(user).id, user=user, **form)

    async def command(
        self, command: str, text: str = "", *, channel: str = "general", user: str = "ada"
    ) -> Sent:
        """Call a slash command, such as ``/status``."""
        body = {"command": command, "text": text, "channel": channel, "user": user}
        said = f"{command} {text}".rstrip()
        return await self._act(said, "/control/commands", body, self._channel(channel))

    async def click(
        self,
        on: Sent | Message | JSON,
        action_id: str | None = None,
        *,
        value: str | list[str] | None = None,
        user: str = "ada",
    ) -> Sent:
        """Press a button of a message or view, or choose in its menu.

        Args:
            on: the message, such as ``sent.replies[0]``, or what the bot replied to: then its last reply; or a view,
                such as :meth:`modal` or :meth:`home`.
            action_id: the button's or the menu's; ``None`` for the first button, or the first with that ``value``.
            value: what to choose in a menu.
            user: who does it.
        """
        if isinstance(on, dict):
            blocks, body = on["blocks"], {"view_id": on["id"]}
            room: Channel | Message = self._direct(user)
        else:
            room = message = _last(on)
            blocks, body = message.blocks, _at(message)
        action = _element(blocks, action_id, value)
        body |= {"user": user, "action_id": action}
        if action_id is not None:
            body["value"] = value
        return await self._act(f"a click on {action}", "/control/actions", body, room)

    async def type(self, query: str, action_id: str, *, on: On = None, user: str = "ada") -> list[JSON]:
        """Type into a menu that asks the bot for its options. Return what the bot offers; it can be chosen then.

        Args:
            query: the letters.
            action_id: the menu's.
            on: the message, or what the bot replied to: then its last reply. ``None``: the open modal.
            user: who does it.

        Raises:
            AssertionError: the bot gave no options that can be used, or Slack asks for them only from more letters on.
        """
        place = {"view_id": self.modal(user)["id"]} if on is None else _at(_last(on))
        body = {**place, "action_id": action_id, "query": query, "user": user}
        answer = await self._client.request("POST", "/control/options", body)
        await self._idle()
        if "type_more" in answer:
            raise AssertionError(f"Slack asks for options from {answer['type_more']} letters on")
        if problem := answer.get("unusable") or answer["problem"]:
            told = [f"{action_id} got no options: {problem}", *map(str, self._stories())]
            raise AssertionError("\n".join(told))
        return list(each_option(answer))

    async def submit(self, values: Mapping[str, Any] | None = None, *, user: str = "ada") -> Sent:
        """Submit the modal that a person has open.

        Args:
            values: what the inputs hold, by ``action_id``, or by ``block_id`` and ``action_id``.
            user: whose modal.
        """
        view = self.modal(user)
        body, path = {"values": _placed(view, values or {})}, f"/control/views/{view['id']}"
        return await self._act("the modal's submission", path, body, self._direct(user))

    async def close(self, *, user: str = "ada") -> Sent:
        """Close the modal that a person has open, without submitting it."""
        path = f"/control/views/{self.modal(user)['id']}"
        return await self._act("closing the modal", path, {}, self._direct(user), "DELETE")

    async def open_app(self, tab: str = "home", *, user: str = "ada") -> Sent:
        """Open the app's *Home*, or with ``messages`` its direct messages: an ``Assistant`` begins a thread there."""
        body = {"tab": tab, "user": user}
        return await self._act(f"opening {tab}", "/control/home", body, self._direct(user))

    async def look(self, channel: str, *, user: str = "ada") -> Sent:
        """Look at a channel while the app is open beside it."""
        body = {"channel": channel, "user": user}
        return await self._act(f"a look at {channel}", "/control/context", body, self._direct(user))

    async def run(self, function: str, inputs: Mapping[str, Any] | None = None) -> Sent:
        """Run a function of the bot, as a workflow does. The ``answer`` has its ``state``, ``outputs`` and ``error``.

        Args:
            function: its ``callback_id``.
            inputs: what the workflow gives it.
        """
        body = {"callback_id": function, "inputs": dict(inputs or {})}
        place = self._channel("general")
        started = await self._act(f"the function {function}", "/control/functions", body, place)
        path = f"/control/functions/{started.answer['execution']}"
        return replace(started, answer=await self._client.request("GET", path))

    async def shortcut(self, callback_id: str, *, on: On = None, user: str = "ada") -> Sent:
        """Use a shortcut: of a message if one is given, otherwise a global one."""
        body = {"callback_id": callback_id, "user": user}
        place: Channel | Message = self._channel("general") if on is None else _message(on)
        if isinstance(place, Message):
            body |= _at(place)
        return await self._act(f"the shortcut {callback_id}", "/control/shortcuts", body, place)

    async def react(self, on: Sent | Message, name: str, *, user: str = "ada") -> Sent:
        """Add a reaction to a message, or remove it. A reaction to a reply is one to the bot's last reply."""
        message = _message(on)
        body = {**_at(message), "name": name, "user": user}
        return await self._act(f"the reaction :{name}:", "/control/reactions", body, message)

    async def edit(self, on: Sent | Message, text: str) -> Sent:
        """Let a person edit their message. ``@surelane`` in the text is a mention. The replies are those since then."""
        message = _message(on)
        body = {**_at(message), "user": message.user, "text": text}
        edited = await self._act(f"{text!r}", "/control/messages", body, message, "PUT")
        return replace(edited, thread=message.thread_ts or message.ts, message=message, direct=None)

    async def delete(self, on: Sent | Message) -> Sent:
        """Let a person delete their message."""
        message = _message(on)
        body = {**_at(message), "user": message.user}
        return await self._act("the deletion", "/control/messages", body, message, "DELETE")

    def messages(self, channel: str | None = None, *, user: str = "ada") -> list[Message]:
        """Return the messages of a channel, or those between a person and the bot, oldest first."""
        return list((self._channel(channel) if channel else self._direct(user)).messages.values())

    def modal(self, user: str = "ada") -> JSON:
        """Return the modal that a person sees, as the bot opened or last updated it.

        Raises:
            AssertionError: there is none.
        """
        opened = self.simulator.interactions.views.stack(self._user(user))
        if not opened:
            raise AssertionError("\n".join([f"{user} sees no modal", *map(str, self._stories())]))
        return opened[-1].content

    def home(self, user: str = "ada") -> JSON:
        """Return the *Home* tab that a person sees, as the bot published it last.

        Raises:
            AssertionError: there is none.
        """
        shown = self.simulator.interactions.views.home(self._user(user))
        if shown is None:
            raise AssertionError("\n".join([f"{user} has no Home tab", *map(str, self._stories())]))
        return shown.content

    async def _say(self, text: str, thread: On, **how: str | bool) -> Sent:
        root = None if thread is None else _message(thread).thread_ts or _message(thread).ts
        said = await self._client.say(text, thread_ts=root, wait=True, **how)
        await self._idle()
        for event in said["events"]:
            if event["state"] == "failed":
                raise AssertionError(f"ingest did not take {event['kind']}: {event['attempts'][-1]}")
        place = self._channel(said["message"]["channel"])
        message = place.messages[said["message"]["ts"]]
        root = message.thread_ts or message.ts
        return Sent(repr(text), place, message.ts, root, message, stories=self._stories)

    async def _act(
        self, what: str, path: str, body: JSON, place: Channel | Message, method: str = "POST"
    ) -> Sent:
        ts = self.simulator.workspace.next_ts()
        answer = await self._client.request(method, path, body)
        await self._idle()
        room = self._channel(place.channel) if isinstance(place, Message) else place
        direct = self._direct(body["user"]) if "user" in body else None
        return Sent(what, room, ts, answer=answer, stories=self._stories, direct=direct)

    def _direct(self, user: str) -> Channel:
        """Return a person's direct messages with the bot."""
        return self.simulator.workspace.direct_messages(self._user(user))

    def _user(self, name: str) -> str:
        user = self.simulator.workspace.user(name)
        if user is None:
            raise ValueError(f"there is no person {name}")
        return user.id

    def _channel(self, name: str) -> Channel:
        channel = self.simulator.workspace.channel(name)
        if channel is None:
            raise ValueError(f"there is no channel {name}")
        return channel


def _message(on: Sent | Message) -> Message:
    """Return the message that a person wrote, or the bot's last reply to something else."""
    return on.message or _last(on) if isinstance(on, Sent) else on


def _at(message: Message) -> JSON:
    return {"channel": message.channel, "ts": message.ts}


def _last(on: Sent | Message) -> Message:
    if isinstance(on, Message):
        return on
    if not on.replies:
        raise AssertionError("\n".join([f"the bot did not reply to {on.what}", *map(str, on.stories())]))
    return on.replies[-1]


def _element(blocks: Iterable[JSON], action_id: str | None, value: object) -> str:
    """Return the ``action_id``, or that of the first button with this value. Raises AssertionError: there is none."""
    there = []
    for _, element in elements_of(blocks):
        button, name = element.get("type") == "button", str(element.get("action_id"))
        if name == action_id or (action_id is None and button and value in (None, element.get("value"))):
            return name
        there.append(f"{name} (value {element['value']!r})" if "value" in element else name)
    told = action_id or ("a button" if value is None else f"a button with the value {value!r}")
    raise AssertionError(f"{told} is not there; there are: {', '.join(there) or 'no elements'}")


def _placed(view: JSON, values: Mapping[str, Any]) -> JSON:
    """Return values by their blocks. A value without its block goes to the block with its ``action_id``."""
    placed: JSON = {}
    for name, value in values.items():
        found = find_element(view["blocks"], name, None)
        if found is None:
            placed[name] = value
        else:
            placed.setdefault(found[0]["block_id"], {})[name] = value
    return placed
