"""Serve ``/response/{key}``, the URL at which an app answers a command or a button."""

import json

from aiohttp import web

from surelane_dev.simulator.control.acts import SIMULATOR
from surelane_dev.simulator.interactions import ResponseUrl
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.webapi.call import ApiError, Arguments
from surelane_dev.simulator.webapi.chat import content_of, thread_of
from surelane_dev.simulator.workspace.model import JSON


async def respond(request: web.Request) -> web.Response:
    """Post, replace or delete a message, as the body says. Answer plain ``ok``, as Slack does."""
    simulator = request.app[SIMULATOR]
    body = await _body(request)
    if body is None:
        return _error("invalid_payload", 400)
    response = simulator.interactions.spend_response(request.match_info["key"])
    if isinstance(response, str):
        return _error(response, 404)
    try:
        _answer(simulator, response, body)
    except ApiError as error:
        return _error(str(error), 400)
    return web.Response(text="ok")


async def _body(request: web.Request) -> JSON | None:
    try:
        body = json.loads(await request.read())
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _answer(simulator: Simulator, response: ResponseUrl, body: JSON) -> None:
    workspace = simulator.installs.workspaces.get(response.team_id, simulator.workspace)
    original = workspace.message(response.channel, response.message_ts or "")
    if body.get("delete_original"):
        if original is not None:
            workspace.delete(original)
        return
    call = Arguments(body)
    content, channel = content_of(call), workspace.channels[response.channel]
    if call.flag("replace_original") and original is not None:
        workspace.edit(original, **content)
        return
    visible_to = None if body.get("response_type") == "in_channel" else response.user
    workspace.speak(channel, **content, visible_to=visible_to, thread_ts=thread_of(call, channel))


def _error(error: str, status: int) -> web.Response:
    return web.json_response({"ok": False, "error": error}, status=status)
