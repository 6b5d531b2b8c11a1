"""Serve the simulator's own operations: its state, the feed, faults, deliveries, replies."""

import asyncio
from collections import deque
from contextlib import suppress
from itertools import islice
from typing import Any

from aiohttp import web

from surelane_dev.simulator.control.inputs import (
    SIMULATOR,
    BadRequestError,
    body_of,
    channel_named,
    workspace_of,
)
from surelane_dev.simulator.faults import Fault
from surelane_dev.simulator.posting.delivery import delivery_json
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.webapi.assistant import STOPPED
from surelane_dev.simulator.webapi.methods import METHODS
from surelane_dev.simulator.webapi.tiers import Tiers
from surelane_dev.simulator.workspace.model import Change, Channel, Message
from surelane_dev.simulator.workspace.shapes import channel_json, user_json
from surelane_dev.simulator.workspace.workspace import Workspace

SHOWN = 500
"""The number of messages per channel, and of deliveries, that a page starts with."""
WAIT_AT_MOST = 600.0


async def state(request: web.Request) -> web.Response:
    """Answer the state that a page starts with."""
    simulator, workspace = request.app[SIMULATOR], workspace_of(request)
    deliveries = islice(reversed(simulator.sender.deliveries.values()), SHOWN)
    return web.json_response(
        {
            "team": {"id": workspace.team_id, "name": workspace.name, "app_id": workspace.app_id},
            "bot": user_json(workspace, workspace.bot),
            "users": [
                user_json(each, user)
                for each in (workspace, *workspace.partners.values())
                for user in each.users.values()
            ],
            "channels": [
                channel_json(workspace, channel) | {"members": sorted(channel.members)}
                for channel in workspace.channels.values()
            ],
            "messages": [
                simulator.message(workspace, message)
                for channel in workspace.channels.values()
                for message in deque(channel.messages.values(), maxlen=SHOWN)
            ],
            "statuses": workspace.statuses(),
            "sessions": simulator.sessions.json(),
            "views": [simulator.views_json(user.id) for user in workspace.people()],
            "commands": [command.model_dump() for command in simulator.manifest.commands],
            "shortcuts": [shortcut.model_dump() for shortcut in simulator.manifest.shortcuts],
            "home_tab": simulator.manifest.home_tab,
            "can_stop": STOPPED in simulator.subscriptions,
            "deliveries": [delivery_json(delivery) for delivery in deliveries][::-1],
            "faults": simulator.faults_json(),
            "workspaces": simulator.workspaces_json(),
            "installs": simulator.settings.installs,
            "kept": simulator.settings.state is not None,
            "sockets": simulator.sockets.json(),
            "calls": list(simulator.api.calls),
            "methods": sorted(METHODS),
            "ingest_url": simulator.settings.ingest_url,
            "posting": simulator.settings.posting,
            "has_queue": simulator.settings.queue_database_url is not None,
        }
    )


async def feed(request: web.Request) -> web.StreamResponse:
    """Send every change as a server-sent event."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await response.prepare(request)
    with suppress(ConnectionResetError):
        async for lines in request.app[SIMULATOR].feed.subscribe():
            await response.write(lines)
    return response


async def reply(request: web.Request) -> web.Response:
    """Wait for the bot's answer to the message ``channel``, ``ts``. Answer 504 after ``timeout`` seconds."""
    simulator, workspace = request.app[SIMULATOR], workspace_of(request)
    channel = channel_named(workspace, request.query.get("channel", ""))
    asked = channel.messages.get(request.query.get("ts", ""))
    if asked is None:
        raise BadRequestError("there is no such message")
    try:
        timeout = min(float(request.query.get("timeout", "30")), WAIT_AT_MOST)
    except ValueError:
        raise BadRequestError("timeout must be a number of seconds") from None
    message = await _await_reply(simulator, workspace, channel, asked, timeout)
    if message is None:
        return web.json_response({"error": f"no reply within {timeout:g} s"}, status=504)
    return web.json_response({"message": simulator.message(workspace, message)})


async def _await_reply(
    simulator: Simulator, workspace: Workspace, channel: Channel, asked: Message, timeout: float
) -> Message | None:
    """Look for the reply after every change. Return ``None`` when the time is up or the simulator ends."""
    found: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def look(_: Change | None) -> None:
        message = _reply_to(channel, asked)
        if message is not None and not found.done():
            found.set_result(message)

    closing = asyncio.create_task(simulator.closing.wait())
    heard = (workspace, *workspace.partners.values())
    for each in heard:
        each.listeners.append(look)
    try:
        look(None)
        waits: list[asyncio.Future[Any]] = [found, closing]
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return found.result() if found.done() else None
    finally:
        closing.cancel()
        for each in heard:
            each.listeners.remove(look)


def _reply_to(channel: Channel, asked: Message) -> Message | None:
    root = asked.thread_ts or asked.ts
    later = (m for m in channel.messages.values() if m.by_app and m.ts > asked.ts and not m.streaming)
    return next((m for m in later if m.thread_ts == root or (channel.is_im and not m.is_reply)), None)


async def add_fault(request: web.Request) -> web.Response:
    """Switch a fault on."""
    simulator = request.app[SIMULATOR]
    fault = await body_of(request, Fault)
    if unknown := set(fault.methods) - set(METHODS):
        raise BadRequestError(f"no such method: {', '.join(sorted(unknown))}")
    simulator.faults.add(fault)
    return web.json_response(fault.model_dump(mode="json"))


async def list_faults(request: web.Request) -> web.Response:
    """List the faults that are on."""
    return web.json_response({"faults": request.app[SIMULATOR].faults_json()})


async def remove_faults(request: web.Request) -> web.Response:
    """Switch off one fault, or all."""
    number = request.match_info.get("fault")
    removed = request.app[SIMULATOR].faults.remove(int(number) if number else None)
    return web.json_response({"removed": removed})


async def show_tiers(request: web.Request) -> web.Response:
    """Show which rate limits are enforced, and how many calls they refused."""
    limits = request.app[SIMULATOR].rate_limits
    return web.json_response({"enforced": limits.enforced, "refused": limits.refused})


async def set_tiers(request: web.Request) -> web.Response:
    """Enforce rate limits from now on, or none."""
    request.app[SIMULATOR].rate_limits.enforce((await body_of(request, Tiers)).enforced)
    return await show_tiers(request)


async def list_deliveries(request: web.Request) -> web.Response:
    """List the deliveries, oldest first."""
    deliveries = request.app[SIMULATOR].sender.deliveries.values()
    return web.json_response({"deliveries": [delivery_json(delivery) for delivery in deliveries]})


async def one_delivery(request: web.Request) -> web.Response:
    """Show the delivery of one event, with its attempts."""
    delivery = request.app[SIMULATOR].sender.deliveries.get(request.match_info["event"])
    if delivery is None:
        raise BadRequestError("there is no such event")
    return web.json_response(delivery_json(delivery))


async def resend(request: web.Request) -> web.Response:
    """Deliver an event again."""
    simulator = request.app[SIMULATOR]
    delivery = simulator.sender.deliveries.get(request.match_info["event"])
    if delivery is None:
        raise BadRequestError("there is no such event")
    simulator.sender.resend(delivery)
    return web.json_response(delivery_json(delivery))


async def list_calls(request: web.Request) -> web.Response:
    """List the latest calls of the Web API, oldest first."""
    return web.json_response({"calls": list(request.app[SIMULATOR].api.calls)})


ROUTES = [
    web.get("/control/state", state),
    web.get("/control/feed", feed),
    web.get("/control/reply", reply),
    web.get("/control/faults", list_faults),
    web.post("/control/faults", add_fault),
    web.delete("/control/faults", remove_faults),
    web.delete("/control/faults/{fault:\\d+}", remove_faults),
    web.get("/control/tiers", show_tiers),
    web.put("/control/tiers", set_tiers),
    web.get("/control/deliveries", list_deliveries),
    web.get("/control/deliveries/{event}", one_delivery),
    web.post("/control/deliveries/{event}/resend", resend),
    web.get("/control/calls", list_calls),
]
