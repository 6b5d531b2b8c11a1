"""Let people write, edit, delete and react."""

import asyncio
from hashlib import sha256
from itertools import takewhile
from typing import Any

from aiohttp import web

from surelane_dev.simulator.control.inputs import (
    SIMULATOR,
    BadRequestError,
    Joining,
    MessageInput,
    Pointed,
    Reaction,
    Rewrite,
    body_of,
    channel_named,
    message_at,
    person_named,
    workspace_of,
)
from surelane_dev.simulator.files import shared_json
from surelane_dev.simulator.posting.delivery import Delivery, delivery_json
from surelane_dev.simulator.posting.events import mentions, rich_text
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.workspace.model import JSON, SLACKBOT, Message
from surelane_dev.simulator.workspace.typed import slack_text
from surelane_dev.simulator.workspace.workspace import Workspace


async def say(request: web.Request) -> web.Response:
    """Post a message as a person; return it and its events."""
    simulator, workspace = request.app[SIMULATOR], workspace_of(request)
    said = await body_of(request, MessageInput)
    kept = [simulator.files.attach(each.name, each.type, each.content, each.access) for each in said.files]
    files = [shared_json(file, simulator.interactions.public_url) for file in kept]
    if not (said.text or said.mention or files):
        raise BadRequestError("text: it may be empty only beside a mention or files")
    message = post(workspace, said, files=files)
    deliveries = deliveries_of(simulator, message)
    if said.wait:
        await asyncio.gather(*(delivery.answered.wait() for delivery in deliveries))
    return web.json_response(
        {
            "message": simulator.message(workspace, message),
            "events": [delivery_json(delivery) for delivery in deliveries],
        }
    )


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
    bot_id, sender = id_named("B", name), dict[str, Any]()
    if said.workflow:
        sender["workflow_id"] = id_named("Wf", name)
    elif said.app:
        sender["app_id"] = app_id = id_named("A", name)
        sender["bot_profile"] = {"id": bot_id, "app_id": app_id, "name": name, "deleted": False}
        name = None
    return {"bot_id": bot_id, "username": name, "sender": sender}


def id_named(prefix: str, name: str) -> str:
    """Return the id of something of another app, always the same for a name."""
    return f"{prefix}0{sha256(name.encode()).hexdigest()[:8].upper()}"


def deliveries_of(simulator: Simulator, message: Message) -> list[Delivery]:
    """Return the deliveries of a new message's events."""
    latest = reversed(simulator.sender.deliveries.values())
    return list(takewhile(lambda delivery: delivery.ts == message.ts, latest))[::-1]


async def rewrite(request: web.Request) -> web.Response:
    """Edit a person's own message."""
    workspace = workspace_of(request)
    asked = await body_of(request, Rewrite)
    message = _own(workspace, asked)
    text = slack_text(workspace, asked.text)
    workspace.edit(message, text=text, blocks=rich_text(text))
    return web.json_response({"message": request.app[SIMULATOR].message(workspace, message)})


async def delete(request: web.Request) -> web.Response:
    """Delete a person's own message."""
    workspace = workspace_of(request)
    workspace.delete(_own(workspace, await body_of(request, Pointed)))
    return web.json_response({})


async def react(request: web.Request) -> web.Response:
    """Add or remove a person's reaction."""
    workspace = workspace_of(request)
    asked = await body_of(request, Reaction)
    message, user = message_at(workspace, asked), person_named(workspace, asked.user)
    added = workspace.react(message, user.id, asked.name)
    if not added:
        workspace.unreact(message, user.id, asked.name)
    return web.json_response({"added": added})


async def join(request: web.Request) -> web.Response:
    """Add a user, such as the bot, to a channel."""
    workspace = workspace_of(request)
    channel = channel_named(workspace, request.match_info["channel"])
    user = workspace.user((await body_of(request, Joining)).user)
    if user is None or channel.is_im:
        raise BadRequestError("there is no such user, or this channel takes no new members")
    return web.json_response({"joined": workspace.join(channel, user.id)})


def _own(workspace: Workspace, pointed: Pointed) -> Message:
    message = message_at(workspace, pointed)
    if message.user != person_named(workspace, pointed.user).id:
        raise BadRequestError("that is somebody else's message")
    return message


ROUTES = [
    web.post("/control/messages", say),
    web.put("/control/messages", rewrite),
    web.delete("/control/messages", delete),
    web.post("/control/reactions", react),
    web.post("/control/channels/{channel}/members", join),
]
