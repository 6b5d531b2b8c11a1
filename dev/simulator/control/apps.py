"""Let people use slash commands, buttons and modals of the app. Slack posts each of them once."""

import json

from aiohttp import web

from dev.simulator.control.inputs import (
    SIMULATOR,
    Command,
    Press,
    RefusedError,
    Submission,
    body_of,
    channel_named,
    message_at,
    person_named,
)
from dev.simulator.posting.delivery import Attempt, form_delivery
from dev.simulator.posting.payloads import action_payload, command_form, view_payload
from dev.simulator.simulator import Simulator
from dev.simulator.workspace.model import JSON, Channel, Message, User


async def command(request: web.Request) -> web.Response:
    """Call a slash command. Show the app's immediate answer in the channel."""
    simulator = request.app[SIMULATOR]
    asked = await body_of(request, Command)
    channel, user = channel_named(simulator, asked.channel), person_named(simulator, asked.user)
    form = command_form(
        simulator.workspace,
        simulator.interactions,
        command=asked.command,
        text=asked.text,
        channel=channel,
        user=user,
    )
    delivery = form_delivery("/slack/commands", asked.command, form["trigger_id"], form)
    attempt = await simulator.sender.send_once(delivery)
    _show_answer(simulator, attempt, asked.command, channel, user)
    return _attempted(attempt, trigger_id=form["trigger_id"], response_url=form["response_url"])


async def press(request: web.Request) -> web.Response:
    """Press a button of a message."""
    simulator = request.app[SIMULATOR]
    asked = await body_of(request, Press)
    message, user = message_at(simulator, asked), person_named(simulator, asked.user)
    payload = action_payload(
        simulator.workspace,
        simulator.interactions,
        message=message,
        user=user,
        action=_button(message, asked.action_id),
    )
    return _attempted(await _interact(simulator, payload))


async def submit(request: web.Request) -> web.Response:
    """Submit a modal. It closes when the app acknowledges."""
    return await _finish(request, "view_submission")


async def close(request: web.Request) -> web.Response:
    """Close a modal. Notify the app if it asked for that."""
    return await _finish(request, "view_closed")


async def _finish(request: web.Request, kind: str) -> web.Response:
    simulator = request.app[SIMULATOR]
    filled = await body_of(request, Submission)
    view_id = request.match_info["view"]
    shown = simulator.interactions.views.get(view_id)
    if shown is None:
        raise RefusedError("that modal is not open")
    view = shown.content | {"state": {"values": filled.values}}
    if kind == "view_closed" and not view["notify_on_close"]:
        simulator.interactions.close(view_id)
        return web.json_response({"status": None, "problem": None})
    user = simulator.workspace.users[shown.user]
    payload = view_payload(simulator.workspace, simulator.interactions, kind=kind, view=view, user=user)
    attempt = await _interact(simulator, payload)
    if attempt.problem is None or kind == "view_closed":
        simulator.interactions.close(view_id)
    return _attempted(attempt)


async def _interact(simulator: Simulator, payload: JSON) -> Attempt:
    form = {"payload": json.dumps(payload)}
    delivery = form_delivery("/slack/interactions", payload["type"], payload["trigger_id"], form)
    return await simulator.sender.send_once(delivery)


def _button(message: Message, action_id: str) -> JSON:
    for block in message.blocks:
        for element in [*block.get("elements", []), block.get("accessory") or {}]:
            if element.get("type") == "button" and element.get("action_id") == action_id:
                named = {"action_id": action_id, "block_id": block.get("block_id", "")}
                kept = {name: element[name] for name in ("text", "value", "style") if name in element}
                return {"type": "button"} | named | kept
    raise RefusedError(f"the message has no button {action_id}")


def _show_answer(simulator: Simulator, attempt: Attempt, name: str, channel: Channel, user: User) -> None:
    """Show the answer to a command, to its user alone unless it says ``in_channel``."""
    if attempt.problem is not None:
        error = "operation_timeout" if attempt.problem == "http_timeout" else "dispatch_failed"
        answer: JSON = {"text": f"{name} failed with the error “{error}”"}
    else:
        answer = _answered(attempt.answer)
    if not (answer.get("text") or answer.get("blocks")):
        return
    simulator.workspace.post(
        channel,
        simulator.workspace.bot.id,
        str(answer.get("text", "")),
        by_app=True,
        blocks=answer.get("blocks", []),
        visible_to=None if answer.get("response_type") == "in_channel" else user.id,
    )


def _answered(body: bytes) -> JSON:
    try:
        answer = json.loads(body)
    except ValueError:
        return {"text": body.decode(errors="replace")}
    return answer if isinstance(answer, dict) else {"text": str(answer)}


def _attempted(attempt: Attempt, **more: str) -> web.Response:
    facts = {"status": attempt.status, "problem": attempt.problem, "ms": round(attempt.seconds * 1000, 1)}
    return web.json_response(facts | more)


ROUTES = [
    web.post("/control/commands", command),
    web.post("/control/actions", press),
    web.post("/control/views/{view}", submit),
    web.delete("/control/views/{view}", close),
]
