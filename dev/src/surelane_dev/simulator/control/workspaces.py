"""Serve the workspaces beside the demo workspace: who has the app, what people write there, and removals."""

from aiohttp import web

from surelane_dev.simulator.control.inputs import (
    SIMULATOR,
    BadRequestError,
    Input,
    MessageInput,
    Text,
    body_of,
)
from surelane_dev.simulator.control.people import deliveries_of, post
from surelane_dev.simulator.installs import Grant
from surelane_dev.simulator.posting.delivery import delivery_json
from surelane_dev.simulator.workspace.shapes import message_json
from surelane_dev.simulator.workspace.workspace import Workspace


class Mention(Input):
    """A person's mention of the bot in a workspace's channel."""

    text: Text
    channel: str = "general"


async def list_workspaces(request: web.Request) -> web.Response:
    """List the workspaces, and whether each has the app."""
    return web.json_response({"workspaces": request.app[SIMULATOR].workspaces_json()})


async def mention(request: web.Request) -> web.Response:
    """Let a person mention the bot; return the message and its events."""
    simulator, workspace = request.app[SIMULATOR], _workspace(request)
    asked = await body_of(request, Mention)
    message = post(workspace, MessageInput(text=asked.text, channel=asked.channel, mention=True))
    events = [delivery_json(delivery) for delivery in deliveries_of(simulator, message)]
    return web.json_response({"message": message_json(workspace, message), "events": events})


async def messages(request: web.Request) -> web.Response:
    """List all messages of a workspace, oldest first."""
    workspace = _workspace(request)
    found = [
        message_json(workspace, message) | {"channel": channel.id}
        for channel in workspace.channels.values()
        for message in channel.messages.values()
    ]
    return web.json_response({"messages": found})


async def uninstall(request: web.Request) -> web.Response:
    """Remove the app from a workspace or, where it was installed for all, from its organization."""
    installs, workspace = request.app[SIMULATOR].installs, _workspace(request)
    grant: Grant | None = installs.installed(workspace)
    removed = 0 if grant is None else installs.uninstall(workspace, wide=grant.wide)
    return web.json_response({"tokens": removed})


def _workspace(request: web.Request) -> Workspace:
    found = request.app[SIMULATOR].installs.workspaces.get(request.match_info["team"])
    if found is None:
        raise BadRequestError("there is no such workspace")
    return found


ROUTES = [
    web.get("/control/workspaces", list_workspaces),
    web.delete("/control/workspaces/{team}", uninstall),
    web.get("/control/workspaces/{team}/messages", messages),
    web.post("/control/workspaces/{team}/messages", mention),
]
