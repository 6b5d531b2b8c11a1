"""Let people write, edit, delete and react, in the demo workspace and in others."""

import asyncio
from hashlib import sha256
from itertools import takewhile
from typing import Any

from surelane_dev.simulator.control.acts import Act, BadRequestError, channel_named, person_named
from surelane_dev.simulator.control.inputs import Joining, Mention, MessageInput, Pointed, Reaction, Rewrite
from surelane_dev.simulator.files import shared_json
from surelane_dev.simulator.posting.delivery import Delivery, delivery_json
from surelane_dev.simulator.posting.events import mentions, rich_text
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.workspace.model import JSON, SLACKBOT, Message
from surelane_dev.simulator.workspace.shapes import message_json
from surelane_dev.simulator.workspace.typed import slack_text
from surelane_dev.simulator.workspace.workspace import Workspace


async def say(act: Act[MessageInput]) -> JSON:
    """Post a message as a person; return it and its events."""
    simulator, workspace, said = act.simulator, act.workspace, act.asked
    kept = [simulator.files.attach(each.name, each.type, each.content, each.access) for each in said.files]
    files = [shared_json(file, simulator.interactions.public_url) for file in kept]
    if not (said.text or said.mention or files):
        raise BadRequestError("text: it may be empty only beside a mention or files")
    message = post(workspace, said, files=files)
    deliveries = _deliveries(simulator, message)
    if said.wait:
        await asyncio.gather(*(delivery.answered.wait() for delivery in deliveries))
    events = [delivery_json(delivery) for delivery in deliveries]
    return {"message": simulator.message(workspace, message), "events": events}


async def mention(act: Act[Mention]) -> JSON:
    """Let a person mention the bot; return the message and its events."""
    said = MessageInput(text=act.asked.text, channel=act.asked.channel, mention=True)
    message = post(act.workspace, said)
    events = [delivery_json(delivery) for delivery in _deliveries(act.simulator, message)]
    return {"message": message_json(act.workspace, message), "events": events}


def post(workspace: Workspace, said: MessageInput, **more: Any) -> Message:  # noqa: ANN401 - Message's own
    """Post a person's text."""
    user, channel = person_named(workspace, said.user), channel_named(workspace, said.channel)
    by_person = not (said.bot or said.workflow or said.slackbot)
    if by_person and user.id not in channel.members:
        raise BadRequestError(f"{user.name} is not in {said.channel}")
    if (said.thread_ts or said.broadcast) and said.thread_ts not in channel.messages:
        raise BadRequestError(f"there is no thread {said.thread_ts} in {said.channel}")
    text = slack_text(workspace, said.text)
    if said.mention and not channel.is_im and workspace.bot.id not in mentions(text):
        text = f"<@{workspace.bot.id}> {text}".rstrip()
    more |= {"thread_ts": said.thread_ts, "subtype": _subtype(said), **_sender(said)}
    if by_person and not said.me:
        more["blocks"] = rich_text(text)
    return workspace.post(channel, user.id if by_person else SLACKBOT * said.slackbot, text, **more)


def _subtype(said: MessageInput) -> str | None:
    if said.bot or said.workflow:
        return "bot_message"
    shown = "thread_broadcast" if said.broadcast else "file_share" if said.files else None
    return "me_message" if said.me else shown


def _sender(said: MessageInput) -> JSON:
    """Return what Slack says of the app or workflow that wrote a message, or through which a person did."""
    name = said.bot or said.workflow or said.app
    if name is None:
        return {}
    bot_id, sender = _id_named("B", name), dict[str, Any]()
    if said.workflow:
        sender["workflow_id"] = _id_named("Wf", name)
    elif said.app:
        sender["app_id"] = app_id = _id_named("A", name)
        sender["bot_profile"] = {"id": bot_id, "app_id": app_id, "name": name, "deleted": False}
        name = None
    return {"bot_id": bot_id, "username": name, "sender": sender}


def _id_named(prefix: str, name: str) -> str:
    """Return the id of something of another app, always the same for a name."""
    return f"{prefix}0{sha256(name.encode()).hexdigest()[:8].upper()}"


def _deliveries(simulator: Simulator, message: Message) -> list[Delivery]:
    """Return the deliveries of a new message's events."""
    latest = reversed(simulator.sender.deliveries.values())
    return list(takewhile(lambda delivery: delivery.ts == message.ts, latest))[::-1]


async def rewrite(act: Act[Rewrite]) -> JSON:
    message, text = _own(act), slack_text(act.workspace, act.asked.text)
    act.workspace.edit(message, text=text, blocks=rich_text(text))
    return {"message": act.simulator.message(act.workspace, message)}


async def delete(act: Act[Pointed]) -> JSON:
    act.workspace.delete(_own(act))
    return {}


async def react(act: Act[Reaction]) -> JSON:
    """Add or remove a person's reaction."""
    workspace, message, user, name = act.workspace, act.message, act.user.id, act.asked.name
    added = workspace.react(message, user, name)
    if not added:
        workspace.unreact(message, user, name)
    return {"added": added}


async def join(act: Act[Joining]) -> JSON:
    """Add a user, such as the bot, to a channel."""
    channel = channel_named(act.workspace, act.request.match_info["channel"])
    user = act.workspace.user(act.asked.user)
    if user is None or channel.is_im:
        raise BadRequestError("there is no such user, or this channel takes no new members")
    return {"joined": act.workspace.join(channel, user.id)}


def _own(act: Act[Rewrite] | Act[Pointed]) -> Message:
    if act.message.user != act.user.id:
        raise BadRequestError("that is somebody else's message")
    return act.message
