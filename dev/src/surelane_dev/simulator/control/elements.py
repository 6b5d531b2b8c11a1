"""Let people use buttons, inputs and menus of messages and views, and stop the agent."""

from dataclasses import dataclass

from surelane_dev.simulator.app_answers import UnusableError, each_option, options_in
from surelane_dev.simulator.control.acts import Act, BadRequestError, attempted, check_app, interact
from surelane_dev.simulator.control.inputs import Entity, FunctionInput, Press, Stop, Typed
from surelane_dev.simulator.posting.events import links_of, new_id
from surelane_dev.simulator.posting.payloads import Payloads
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.state import NotOfferedError, Options, choice, state_of
from surelane_dev.simulator.views import View
from surelane_dev.simulator.workspace.blocks import find_element
from surelane_dev.simulator.workspace.model import JSON, Message, User
from surelane_dev.simulator.workspace.workspace import Workspace

EXTERNAL = frozenset({"external_select", "multi_external_select"})
SHORTEST_QUERY = 3
"""Characters that a person must type before Slack asks for options, unless the menu says otherwise."""


@dataclass(frozen=True, slots=True)
class UsedElement:
    """An element that a person uses, and the message or view in which it is."""

    workspace: Workspace
    place: Message | View
    user: User
    blocks: list[JSON]
    block: JSON
    element: JSON
    key: str
    """The name of the place."""
    offered: Options


def _used(act: Act[Press] | Act[Typed]) -> UsedElement:
    simulator, asked = act.simulator, act.asked
    place: Message | View
    if asked.view_id:
        place = open_view(simulator, asked.view_id)
        workspace, user = viewer(simulator, place)
        blocks, key = place.content["blocks"], place.id
    else:
        place, user = act.message, act.user
        workspace, blocks, key = act.workspace.author_of(place), place.blocks, f"{place.channel}/{place.ts}"
        check_app(simulator, workspace)
    found = find_element(blocks, asked.action_id, asked.block_id)
    if found is None:
        where = "view" if asked.view_id else "message"
        raise BadRequestError(f"the {where} has no button or input {asked.action_id}")
    return UsedElement(workspace, place, user, blocks, *found, key, simulator.offered.of(key))


def viewer(simulator: Simulator, view: View) -> tuple[Workspace, User]:
    """Return the workspace whose app opened a view, and the person who sees it."""
    workspace = simulator.installs.workspaces[view.content["team_id"]]
    found = workspace.member(view.user)
    if found is None:
        raise BadRequestError("that view's person is gone")
    return workspace, found[1]


def open_view(simulator: Simulator, view_id: str) -> View:
    """Return an open modal or a *Home* tab."""
    view = simulator.interactions.views.find(view_id)
    if view is None:
        raise BadRequestError("that modal is not open")
    return view


async def press(act: Act[Press]) -> JSON:
    """Press a button, or change an input that sends its changes."""
    used = _used(act)
    action = _action(used, act.asked.value)
    state = state_of(used.blocks, act.asked.values, used.offered)
    payloads = Payloads(used.workspace, act.simulator.interactions, used.user)
    payload = payloads.action(used.place, action, state)
    return attempted(await interact(act.simulator, used.workspace, payload))


def _action(used: UsedElement, value: object) -> JSON:
    element, kind = used.element, used.element["type"]
    named = {"action_id": element["action_id"], "block_id": used.block["block_id"]}
    match kind:
        case "button" | "icon_button":
            names = ("text", "icon", "value", "style", "url")
            return {"type": kind, **named, **{name: element[name] for name in names if name in element}}
        case "feedback_buttons":
            for button in (element["positive_button"], element["negative_button"]):
                if value in (None, button["value"]):
                    return {"type": kind, **named, "text": button["text"], "value": button["value"]}
            raise NotOfferedError(f"{element['action_id']} has no button {value}")
    return named | choice(element, value, used.offered(named["block_id"], named["action_id"])).value


async def options(act: Act[Typed]) -> JSON:
    """Ask the app for a menu's options, if the person has typed enough."""
    simulator, asked, used = act.simulator, act.asked, _used(act)
    if used.element["type"] not in EXTERNAL:
        raise BadRequestError(f"{asked.action_id} does not ask the app for options")
    shortest = int(used.element.get("min_query_length", SHORTEST_QUERY))
    if len(asked.query) < shortest:
        return {"options": [], "problem": None, "type_more": shortest}
    element = {"action_id": used.element["action_id"], "block_id": used.block["block_id"]}
    state = state_of(used.blocks, asked.values, used.offered)
    payloads = Payloads(used.workspace, simulator.interactions, used.user)
    payload = payloads.suggestion(used.place, element, asked.query, state)
    attempt = await interact(simulator, used.workspace, payload)
    try:
        found = options_in(attempt)
        simulator.offered.add(used.key, element, each_option(found))
    except UnusableError as error:
        return attempted(attempt, options=[], unusable=str(error))
    return attempted(attempt, **found)


async def stop(act: Act[Stop]) -> JSON:
    """Stop the agent in a thread. Slack ends its streams, and the app hears ``agent_session_stopped``."""
    workspace, channel, thread_ts, user = act.workspace, act.channel, act.asked.thread_ts, act.user.id
    session = act.simulator.sessions.find(channel.id, thread_ts)
    if session is None or session.status != "processing":
        raise BadRequestError("the agent is not working in that thread")
    streams = [message for message in channel.thread(thread_ts) if message.streaming]
    for message in streams:
        workspace.stream(message, "", ended=True)
    ended = [message.ts for message in streams]
    where = {"user": user, "channel": channel.id, "thread_ts": thread_ts}
    return {"event": act.event("agent_session_stopped", **where, streaming_message_ts=ended)}


async def entity(act: Act[Entity]) -> JSON:
    """Ask the app for the details of a Work Object that it shows. It hears ``entity_details_requested``."""
    message, user, url = act.message, act.user, act.asked.url
    found = next((each["entity"] for each in message.attachments if each.get("from_url") == url), None)
    if found is None:
        raise BadRequestError("the app shows no such entity there")
    link = next(link for link in links_of(act.workspace, message.text) if link["url"] == url)
    asked: JSON = {"external_ref": found["external_ref"], "entity_url": found["url"], "app_unfurl_url": url}
    asked |= {"user": user.id, "link": link, "trigger_id": act.simulator.interactions.new_trigger(user.id)}
    asked |= {"user_locale": "en-US", "channel": message.channel, "message_ts": message.ts}
    return {"event": act.event("entity_details_requested", **asked)}


async def run(act: Act[FunctionInput]) -> JSON:
    """Run a function of the app, as a workflow does. The app hears ``function_executed``."""
    workspace, name = act.workspace, act.asked.callback_id
    execution = act.simulator.executions.start(new_id("Fx"), workspace.team_id, name)
    function: JSON = {"id": new_id("Fn"), "callback_id": name, "title": name, "type": "app"}
    function |= {"input_parameters": [], "output_parameters": [], "app_id": workspace.app_id}
    ids = {"function_execution_id": execution.id, "workflow_execution_id": new_id("Wx")}
    given = {"function": function, "inputs": act.asked.inputs, "bot_access_token": execution.token}
    return {"event": act.event("function_executed", **ids, **given), "execution": execution.id}


async def show_run(act: Act[None]) -> JSON:
    """Answer how a function's run has ended, if it has."""
    execution = act.simulator.executions.find(act.request.match_info["execution"])
    if execution is None:
        raise BadRequestError("there is no such run")
    return {"state": execution.state, "outputs": execution.outputs, "error": execution.error}
