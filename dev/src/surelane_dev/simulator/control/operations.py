"""Serve the simulator's own operations: its state, the feed, faults, deliveries, replies, workspaces."""

import asyncio
from collections import deque
from contextlib import suppress
from itertools import islice
from typing import Any

from aiohttp import web

from surelane_dev.simulator.control.acts import SIMULATOR, Act, BadRequestError, channel_named
from surelane_dev.simulator.control.inputs import DisconnectInput, Unanswered
from surelane_dev.simulator.faults import Fault
from surelane_dev.simulator.posting.delivery import Delivery, delivery_json
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.webapi.assistant import STOPPED
from surelane_dev.simulator.webapi.methods import METHODS
from surelane_dev.simulator.webapi.tiers import Tiers
from surelane_dev.simulator.workspace.model import JSON, Change, Channel, Message
from surelane_dev.simulator.workspace.shapes import channel_json, message_json, user_json
from surelane_dev.simulator.workspace.workspace import Workspace

SHOWN = 500
"""The number of messages per channel, and of deliveries, that a page starts with."""
WAIT_AT_MOST = 600.0


async def state(act: Act[None]) -> JSON:
    """Answer the state that a page starts with."""
    simulator, workspace = act.simulator, act.workspace
    deliveries = islice(reversed(simulator.sender.deliveries.values()), SHOWN)
    everywhere, channels = (workspace, *workspace.partners.values()), workspace.channels.values()
    messages = (each for channel in channels for each in deque(channel.messages.values(), maxlen=SHOWN))
    return {
        "team": {"id": workspace.team_id, "name": workspace.name, "app_id": workspace.app_id},
        "bot": user_json(workspace, workspace.bot),
        "users": [user_json(each, user) for each in everywhere for user in each.users.values()],
        "channels": [channel_json(workspace, each) | {"members": sorted(each.members)} for each in channels],
        "messages": [simulator.message(workspace, message) for message in messages],
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
        "problem": simulator.problem,
        "has_queue": simulator.settings.queue_database_url is not None,
    }


async def show_problem(act: Act[Unanswered]) -> JSON:
    """Show on every page why the app answers nothing."""
    act.simulator.problem = act.asked.text
    act.simulator.feed.publish("problem", {"text": act.asked.text})
    return {}


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
    act = Act(request, None)
    channel = channel_named(act.workspace, request.query.get("channel", ""))
    asked = channel.messages.get(request.query.get("ts", ""))
    if asked is None:
        raise BadRequestError("there is no such message")
    try:
        timeout = min(float(request.query.get("timeout", "30")), WAIT_AT_MOST)
    except ValueError:
        raise BadRequestError("timeout must be a number of seconds") from None
    message = await _await_reply(act.simulator, act.workspace, channel, asked, timeout)
    if message is None:
        return web.json_response({"error": f"no reply within {timeout:g} s"}, status=504)
    return web.json_response({"message": act.simulator.message(act.workspace, message)})


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


async def add_fault(act: Act[Fault]) -> JSON:
    if unknown := set(act.asked.methods) - set(METHODS):
        raise BadRequestError(f"no such method: {', '.join(sorted(unknown))}")
    act.simulator.faults.add(act.asked)
    return act.asked.model_dump(mode="json")


async def list_faults(act: Act[None]) -> JSON:
    return {"faults": act.simulator.faults_json()}


async def remove_faults(act: Act[None]) -> JSON:
    """Switch off one fault, or all."""
    number = act.request.match_info.get("fault")
    return {"removed": act.simulator.faults.remove(int(number) if number else None)}


async def show_tiers(act: Act[Any]) -> JSON:
    """Show which rate limits are enforced, and how many calls they refused."""
    limits = act.simulator.rate_limits
    return {"enforced": limits.enforced, "refused": limits.refused}


async def set_tiers(act: Act[Tiers]) -> JSON:
    """Enforce rate limits from now on, or none."""
    act.simulator.rate_limits.enforce(act.asked.enforced)
    return await show_tiers(act)


async def list_deliveries(act: Act[None]) -> JSON:
    """List the deliveries, oldest first."""
    return {"deliveries": [delivery_json(each) for each in act.simulator.sender.deliveries.values()]}


async def one_delivery(act: Act[None]) -> JSON:
    return delivery_json(_delivery(act))


async def resend(act: Act[None]) -> JSON:
    delivery = _delivery(act)
    act.simulator.sender.resend(delivery)
    return delivery_json(delivery)


def _delivery(act: Act[None]) -> Delivery:
    delivery = act.simulator.sender.deliveries.get(act.request.match_info["event"])
    if delivery is None:
        raise BadRequestError("there is no such event")
    return delivery


async def list_calls(act: Act[None]) -> JSON:
    """List the latest calls of the Web API, oldest first."""
    return {"calls": list(act.simulator.api.calls)}


async def show_sockets(act: Act[None]) -> JSON:
    """Show whether the app uses Socket Mode, and how many connections it has."""
    return act.simulator.sockets.json()


async def disconnect(act: Act[DisconnectInput]) -> JSON:
    return {"disconnected": act.simulator.sockets.disconnect(act.asked.reason, act.asked.every)}


async def list_workspaces(act: Act[None]) -> JSON:
    return {"workspaces": act.simulator.workspaces_json()}


async def list_messages(act: Act[None]) -> JSON:
    """List all messages of a workspace, oldest first."""
    found = [
        message_json(act.workspace, message) | {"channel": channel.id}
        for channel in act.workspace.channels.values()
        for message in channel.messages.values()
    ]
    return {"messages": found}


async def uninstall(act: Act[None]) -> JSON:
    """Remove the app from a workspace or, where it was installed for all, from its organization."""
    grant = act.simulator.installs.installed(act.workspace)
    removed = 0 if grant is None else act.simulator.installs.uninstall(act.workspace, wide=grant.wide)
    return {"tokens": removed}
