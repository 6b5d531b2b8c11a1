"""Let people call slash commands and shortcuts, and open the app's *Home*. Slack posts each of them once."""

from aiohttp import web

from surelane_dev.simulator.app_answers import show_command_answer
from surelane_dev.simulator.control.inputs import (
    SIMULATOR,
    Command,
    Home,
    Look,
    Shortcut,
    body_of,
    channel_named,
    message_at,
    person_named,
    workspace_with_app,
)
from surelane_dev.simulator.control.interacting import attempted, interact
from surelane_dev.simulator.posting.delivery import form_delivery
from surelane_dev.simulator.posting.payloads import command_form, message_action_payload, shortcut_payload
from surelane_dev.simulator.workspace.model import JSON


async def command(request: web.Request) -> web.Response:
    """Call a slash command. Show the app's immediate answer in the channel."""
    simulator, workspace = request.app[SIMULATOR], workspace_with_app(request)
    asked = await body_of(request, Command)
    channel, user = channel_named(workspace, asked.channel), person_named(workspace, asked.user)
    form = command_form(
        workspace,
        simulator.interactions,
        command=asked.command,
        text=asked.text,
        channel=channel,
        user=user,
        wide=simulator.installs.is_wide(workspace),
    )
    delivery = form_delivery(asked.command, form["trigger_id"], form, workspace.team_id)
    attempt = await simulator.sender.send_once(delivery)
    shown = show_command_answer(workspace, attempt, command=asked.command, channel=channel, user=user)
    return attempted(
        attempt,
        trigger_id=form["trigger_id"],
        response_url=form["response_url"],
        message=simulator.message(workspace, shown) if shown else None,
    )


async def shortcut(request: web.Request) -> web.Response:
    """Use a shortcut: of a message if one is named, else a global one."""
    simulator, workspace = request.app[SIMULATOR], workspace_with_app(request)
    asked = await body_of(request, Shortcut)
    interactions, user = simulator.interactions, person_named(workspace, asked.user)
    if asked.ts:
        message = message_at(workspace, asked)
        payload = message_action_payload(
            workspace, interactions, callback_id=asked.callback_id, message=message, user=user
        )
    else:
        payload = shortcut_payload(workspace, interactions, callback_id=asked.callback_id, user=user)
    return attempted(await interact(simulator, workspace, payload), trigger_id=payload["trigger_id"])


async def home(request: web.Request) -> web.Response:
    """Open a tab of the app's *Home*. The app hears of it if it is subscribed to ``app_home_opened``."""
    simulator, workspace = request.app[SIMULATOR], workspace_with_app(request)
    asked = await body_of(request, Home)
    user = person_named(workspace, asked.user)
    shown = simulator.interactions.views.home(user.id)
    event: JSON = {
        "type": "app_home_opened",
        "user": user.id,
        "channel": workspace.direct_messages(user.id).id,
        "tab": asked.tab,
        "event_ts": workspace.next_ts(),
    }
    if shown is not None and asked.tab == "home":
        event["view"] = shown.content
    return web.json_response({"event": simulator.send_event(workspace, event)})


async def look(request: web.Request) -> web.Response:
    """Let a person look at a channel. An app with the agent view hears ``app_context_changed``.

    With a thread, an app with the older assistant view hears ``assistant_thread_context_changed``.
    """
    simulator, workspace = request.app[SIMULATOR], workspace_with_app(request)
    asked = await body_of(request, Look)
    user, channel = person_named(workspace, asked.user), channel_named(workspace, asked.channel)
    direct, now = workspace.direct_messages(user.id).id, workspace.next_ts()
    entity = {"type": "slack#/types/channel_id", "value": channel.id, "team_id": workspace.team_id}
    context: JSON = {"entities": [entity]}
    workspace.looked_at[user.id] = context
    event: JSON = {"type": "app_context_changed", "user": user.id, "channel": direct, "context": context}
    if asked.thread_ts:
        thread = {
            "user_id": user.id,
            "context": {"channel_id": channel.id, "team_id": workspace.team_id},
            "channel_id": direct,
            "thread_ts": asked.thread_ts,
        }
        event = {"type": "assistant_thread_context_changed", "assistant_thread": thread}
    return web.json_response({"event": simulator.send_event(workspace, event | {"event_ts": now})})


ROUTES = [
    web.post("/control/commands", command),
    web.post("/control/shortcuts", shortcut),
    web.post("/control/home", home),
    web.post("/control/context", look),
]
