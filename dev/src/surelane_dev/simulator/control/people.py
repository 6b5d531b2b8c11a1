"""Let people write, edit, delete and react."""

import asyncio
from itertools import takewhile

from aiohttp import web

from surelane_dev.simulator.control.inputs import (
    SIMULATOR,
    Joining,
    Pointed,
    Reaction,
    RefusedError,
    Rewrite,
    Said,
    body_of,
    channel_named,
    message_at,
    person_named,
)
from surelane_dev.simulator.posting.delivery import Delivery, delivery_json
from surelane_dev.simulator.posting.events import mentions, rich_text
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.workspace.model import Message
from surelane_dev.simulator.workspace.typed import slack_text


async def say(request: web.Request) -> web.Response:
    """Post a message as a person; return it and its events."""
    simulator = request.app[SIMULATOR]
    said = await body_of(request, Said)
    message = post(simulator, said)
    deliveries = deliveries_of(simulator, message)
    if said.wait:
        await asyncio.gather(*(delivery.answered.wait() for delivery in deliveries))
    return web.json_response(
        {
            "message": simulator.message(message),
            "events": [delivery_json(delivery) for delivery in deliveries],
        }
    )


def post(simulator: Simulator, said: Said) -> Message:
    """Post a person's text."""
    workspace = simulator.workspace
    user, channel = person_named(simulator, said.user), channel_named(simulator, said.channel)
    if user.id not in channel.members:
        raise RefusedError(f"{user.name} is not in {said.channel}")
    if said.thread_ts is not None and said.thread_ts not in channel.messages:
        raise RefusedError(f"there is no thread {said.thread_ts} in {said.channel}")
    text = slack_text(workspace, said.text)
    if said.mention and not channel.is_im and workspace.bot.id not in mentions(text):
        text = f"<@{workspace.bot.id}> {text}"
    return workspace.post(channel, user.id, text, blocks=rich_text(text), thread_ts=said.thread_ts)


def deliveries_of(simulator: Simulator, message: Message) -> list[Delivery]:
    """Return the deliveries of a new message's events."""
    latest = reversed(simulator.sender.deliveries.values())
    return list(takewhile(lambda delivery: delivery.ts == message.ts, latest))[::-1]


async def rewrite(request: web.Request) -> web.Response:
    """Edit a person's own message."""
    simulator = request.app[SIMULATOR]
    asked = await body_of(request, Rewrite)
    message = _own(simulator, asked)
    text = slack_text(simulator.workspace, asked.text)
    simulator.workspace.edit(message, text=text, blocks=rich_text(text))
    return web.json_response({"message": simulator.message(message)})


async def delete(request: web.Request) -> web.Response:
    """Delete a person's own message."""
    simulator = request.app[SIMULATOR]
    simulator.workspace.delete(_own(simulator, await body_of(request, Pointed)))
    return web.json_response({})


async def react(request: web.Request) -> web.Response:
    """Add or remove a person's reaction."""
    simulator = request.app[SIMULATOR]
    asked = await body_of(request, Reaction)
    message, user = message_at(simulator, asked), person_named(simulator, asked.user)
    added = simulator.workspace.react(message, user.id, asked.name)
    if not added:
        simulator.workspace.unreact(message, user.id, asked.name)
    return web.json_response({"added": added})


async def join(request: web.Request) -> web.Response:
    """Add a user, such as the bot, to a channel."""
    simulator = request.app[SIMULATOR]
    channel = channel_named(simulator, request.match_info["channel"])
    user = simulator.workspace.user((await body_of(request, Joining)).user)
    if user is None or channel.is_im:
        raise RefusedError("there is no such user, or this channel takes no new members")
    return web.json_response({"joined": simulator.workspace.join(channel, user.id)})


def _own(simulator: Simulator, pointed: Pointed) -> Message:
    message = message_at(simulator, pointed)
    if message.user != person_named(simulator, pointed.user).id:
        raise RefusedError("that is somebody else's message")
    return message


ROUTES = [
    web.post("/control/messages", say),
    web.put("/control/messages", rewrite),
    web.delete("/control/messages", delete),
    web.post("/control/reactions", react),
    web.post("/control/channels/{channel}/members", join),
]
