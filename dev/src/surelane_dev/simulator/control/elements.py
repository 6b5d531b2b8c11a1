"""Let people use buttons, inputs and menus of messages and views, and stop the agent."""

from aiohttp import web

from surelane_dev.simulator.app_answers import UnusableError, each_option, options_in
from surelane_dev.simulator.control.inputs import (
    SIMULATOR,
    BadRequestError,
    Entity,
    FunctionInput,
    Press,
    Stop,
    Typed,
    body_of,
    channel_named,
    message_at,
    person_named,
    workspace_with_app,
)
from surelane_dev.simulator.control.interacting import UsedElement, attempted, interact, used_element
from surelane_dev.simulator.posting.events import links_of, new_id
from surelane_dev.simulator.posting.payloads import action_payload, suggestion_payload, view_action_payload
from surelane_dev.simulator.state import NotOfferedError, choice, state_of
from surelane_dev.simulator.views import View
from surelane_dev.simulator.workspace.model import JSON

EXTERNAL = frozenset({"external_select", "multi_external_select"})
SHORTEST_QUERY = 3
"""Characters that a person must type before Slack asks for options, unless the menu says otherwise."""


async def press(request: web.Request) -> web.Response:
    """Press a button, or change an input that sends its changes."""
    simulator = request.app[SIMULATOR]
    used = used_element(request, asked := await body_of(request, Press))
    workspace, interactions = used.workspace, simulator.interactions
    action = _action(used, asked.value)
    state = state_of(used.blocks, asked.values, used.offered)
    if isinstance(used.place, View):
        payload = view_action_payload(
            workspace, interactions, view=used.place, user=used.user, action=action, state=state
        )
    else:
        payload = action_payload(
            workspace, interactions, message=used.place, user=used.user, action=action, state=state
        )
    return attempted(await interact(simulator, workspace, payload))


def _action(used: UsedElement, value: object) -> JSON:
    element = used.element
    named = {"action_id": element["action_id"], "block_id": used.block["block_id"]}
    match element["type"]:
        case "button" | "icon_button":
            kept = {
                name: element[name] for name in ("text", "icon", "value", "style", "url") if name in element
            }
            return {"type": element["type"]} | named | kept
        case "feedback_buttons":
            for button in (element["positive_button"], element["negative_button"]):
                if value in (None, button["value"]):
                    return (
                        {"type": element["type"]} | named | {"text": button["text"], "value": button["value"]}
                    )
            raise NotOfferedError(f"{element['action_id']} has no button {value}")
    return named | choice(element, value, used.offered(named["block_id"], named["action_id"])).value


async def options(request: web.Request) -> web.Response:
    """Ask the app for a menu's options, if the person has typed enough."""
    simulator = request.app[SIMULATOR]
    used = used_element(request, asked := await body_of(request, Typed))
    if used.element["type"] not in EXTERNAL:
        raise BadRequestError(f"{asked.action_id} does not ask the app for options")
    shortest = int(used.element.get("min_query_length", SHORTEST_QUERY))
    if len(asked.query) < shortest:
        return web.json_response({"options": [], "problem": None, "type_more": shortest})
    element = {"action_id": used.element["action_id"], "block_id": used.block["block_id"]}
    state = state_of(used.blocks, asked.values, used.offered)
    payload = suggestion_payload(
        used.workspace, place=used.place, user=used.user, element=element, query=asked.query, state=state
    )
    attempt = await interact(simulator, used.workspace, payload)
    try:
        found = options_in(attempt)
        simulator.offered.add(used.key, element, each_option(found))
    except UnusableError as error:
        return attempted(attempt, options=[], unusable=str(error))
    return attempted(attempt, **found)


async def stop(request: web.Request) -> web.Response:
    """Stop the agent in a thread. Slack ends its streams, and the app hears ``agent_session_stopped``."""
    simulator, workspace = request.app[SIMULATOR], workspace_with_app(request)
    asked = await body_of(request, Stop)
    channel, user = channel_named(workspace, asked.channel), person_named(workspace, asked.user)
    session = simulator.sessions.find(channel.id, asked.thread_ts)
    if session is None or session.status != "processing":
        raise BadRequestError("the agent is not working in that thread")
    streams = [message for message in channel.thread(asked.thread_ts) if message.streaming]
    for message in streams:
        workspace.stream(message, "", ended=True)
    event = simulator.send_event(
        workspace,
        {
            "type": "agent_session_stopped",
            "user": user.id,
            "channel": channel.id,
            "thread_ts": asked.thread_ts,
            "streaming_message_ts": [message.ts for message in streams],
            "event_ts": workspace.next_ts(),
        },
    )
    return web.json_response({"event": event})


async def entity(request: web.Request) -> web.Response:
    """Ask the app for the details of a Work Object that it shows. It hears ``entity_details_requested``."""
    simulator, workspace = request.app[SIMULATOR], workspace_with_app(request)
    asked = await body_of(request, Entity)
    message, user = message_at(workspace, asked), person_named(workspace, asked.user)
    found = next((each["entity"] for each in message.attachments if each.get("from_url") == asked.url), None)
    if found is None:
        raise BadRequestError("the app shows no such entity there")
    event: JSON = {
        "type": "entity_details_requested",
        "user": user.id,
        "external_ref": found["external_ref"],
        "entity_url": found["url"],
        "link": next(link for link in links_of(workspace, message.text) if link["url"] == asked.url),
        "app_unfurl_url": asked.url,
        "trigger_id": simulator.interactions.new_trigger(user.id),
        "user_locale": "en-US",
        "channel": message.channel,
        "message_ts": message.ts,
        "event_ts": workspace.next_ts(),
    }
    return web.json_response({"event": simulator.send_event(workspace, event)})


async def run(request: web.Request) -> web.Response:
    """Run a function of the app, as a workflow does. The app hears ``function_executed``."""
    simulator, workspace = request.app[SIMULATOR], workspace_with_app(request)
    asked = await body_of(request, FunctionInput)
    execution = simulator.executions.start(new_id("Fx"), workspace.team_id, asked.callback_id)
    event: JSON = {
        "type": "function_executed",
        "function": {
            "id": new_id("Fn"),
            "callback_id": asked.callback_id,
            "title": asked.callback_id,
            "type": "app",
            "input_parameters": [],
            "output_parameters": [],
            "app_id": workspace.app_id,
        },
        "inputs": asked.inputs,
        "function_execution_id": execution.id,
        "workflow_execution_id": new_id("Wx"),
        "event_ts": workspace.next_ts(),
        "bot_access_token": execution.token,
    }
    return web.json_response({"event": simulator.send_event(workspace, event), "execution": execution.id})


async def show_run(request: web.Request) -> web.Response:
    """Answer how a function's run has ended, if it has."""
    execution = request.app[SIMULATOR].executions.find(request.match_info["execution"])
    if execution is None:
        raise BadRequestError("there is no such run")
    facts = {"state": execution.state, "outputs": execution.outputs, "error": execution.error}
    return web.json_response(facts)


ROUTES = [
    web.post("/control/actions", press),
    web.post("/control/options", options),
    web.post("/control/stop", stop),
    web.post("/control/entities", entity),
    web.post("/control/functions", run),
    web.get("/control/functions/{execution}", show_run),
]
