"""Let people call slash commands and shortcuts, and open the app's *Home*. Slack posts each of them once."""

from aiohttp import web

from surelane_dev.simulator.app_answers import show_command_answer
from surelane_dev.simulator.control.inputs import (
    SIMULATOR,
    CommandInput,
    Home,
    Look,
    ShortcutInput,
    body_of,
    channel_named,
    message_at,
    person_named,
    workspace_with_app,
)
from surelane_dev.simulator.control.interacting import attempted, interact
from surelane_dev.simulator.posting.delivery import form_delivery
from surelane_dev.simulator.posting.payloads import command_form, message_action_payload, shortcut_payload
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.workspace.model import JSON
from surelane_dev.simulator.workspace.workspace import Workspace

STARTED, CHANGED = "assistant_thread_started", "assistant_thread_context_changed"


async def command(request: web.Request) -> web.Response:
    """Call a slash command. Show the app's immediate answer in the channel."""
    simulator, workspace = request.app[SIMULATOR], workspace_with_app(request)
    asked = await body_of(request, CommandInput)
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
    asked = await body_of(request, ShortcutInput)
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
    """Open a tab of the app's *Home*. The app hears of it if it is subscribed to ``app_home_opened``.

    An app that is subscribed to ``assistant_thread_started`` has the older assistant view. The tab ``messages`` also
    starts a thread of such an app.
    """
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
    opened = simulator.send_event(workspace, event)
    if asked.tab == "messages" and STARTED in simulator.subscriptions:
        _start_thread(simulator, workspace, user.id)
    return web.json_response({"event": opened})


def _start_thread(simulator: Simulator, workspace: Workspace, user: str) -> None:
    """Start an assistant's thread, with the message that Slack posts as its root."""
    direct = workspace.direct_messages(user)
    root = workspace.post(
        direct, workspace.bot.id, "New Assistant Thread", by_app=True, subtype="assistant_app_thread"
    )
    workspace.assistant_threads[user] = root.ts
    entities = workspace.looked_at.get(user, {}).get("entities", ())
    channel = next((each["value"] for each in entities), None)
    _tell_thread(simulator, workspace, STARTED, user, root.ts, channel)


def _tell_thread(
    simulator: Simulator, workspace: Workspace, sort: str, user: str, thread_ts: str, channel: str | None
) -> JSON | None:
    """Send an event of an assistant's thread. Its context is empty if the person looks at no channel."""
    thread = {
        "user_id": user,
        "context": {"channel_id": channel, "team_id": workspace.team_id} if channel else {},
        "channel_id": workspace.direct_messages(user).id,
        "thread_ts": thread_ts,
    }
    event = {"type": sort, "assistant_thread": thread, "event_ts": workspace.next_ts()}
    return simulator.send_event(workspace, event)


async def look(request: web.Request) -> web.Response:
    """Let a person look at a channel. An app with the agent view hears ``app_context_changed``.

    An app with the older assistant view hears ``assistant_thread_context_changed``: of the given thread, or of the
    person's newest one.
    """
    simulator, workspace = request.app[SIMULATOR], workspace_with_app(request)
    asked = await body_of(request, Look)
    user, channel = person_named(workspace, asked.user), channel_named(workspace, asked.channel)
    entity = {"type": "slack#/types/channel_id", "value": channel.id, "team_id": workspace.team_id}
    context: JSON = {"entities": [entity]}
    workspace.looked_at[user.id] = context
    thread_ts = asked.thread_ts or workspace.assistant_threads.get(user.id)
    if thread_ts:
        sent = _tell_thread(simulator, workspace, CHANGED, user.id, thread_ts, channel.id)
        return web.json_response({"event": sent})
    event: JSON = {
        "type": "app_context_changed",
        "user": user.id,
        "channel": workspace.direct_messages(user.id).id,
        "context": context,
        "event_ts": workspace.next_ts(),
    }
    return web.json_response({"event": simulator.send_event(workspace, event)})


ROUTES = [
    web.post("/control/commands", command),
    web.post("/control/shortcuts", shortcut),
    web.post("/control/home", home),
    web.post("/control/context", look),
]
