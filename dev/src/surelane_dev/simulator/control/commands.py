"""Let people call slash commands and shortcuts, and open the app's *Home*. Slack posts each of them once."""

from surelane_dev.simulator.app_answers import show_command_answer
from surelane_dev.simulator.control.acts import Act, attempted, interact
from surelane_dev.simulator.control.inputs import CommandInput, Home, Look, ShortcutInput
from surelane_dev.simulator.posting.delivery import form_delivery
from surelane_dev.simulator.workspace.model import JSON

STARTED, CHANGED = "assistant_thread_started", "assistant_thread_context_changed"


async def command(act: Act[CommandInput]) -> JSON:
    """Call a slash command. Show the app's immediate answer in the channel."""
    simulator, workspace, asked, channel = act.simulator, act.workspace, act.asked, act.channel
    wide = simulator.installs.is_wide(workspace)
    form = act.payloads.command(asked.command, asked.text, channel, wide=wide)
    delivery = form_delivery(asked.command, form["trigger_id"], form, workspace.team_id)
    attempt = await simulator.sender.send_once(delivery)
    shown = show_command_answer(workspace, attempt, command=asked.command, channel=channel, user=act.user)
    message = simulator.message(workspace, shown) if shown else None
    named = {name: form[name] for name in ("trigger_id", "response_url")}
    return attempted(attempt, **named, message=message)


async def shortcut(act: Act[ShortcutInput]) -> JSON:
    """Use a shortcut: of a message if one is named, else a global one."""
    callback, payloads = act.asked.callback_id, act.payloads
    payload = payloads.message_action(callback, act.message) if act.asked.ts else payloads.shortcut(callback)
    return attempted(await interact(act.simulator, act.workspace, payload), trigger_id=payload["trigger_id"])


async def home(act: Act[Home]) -> JSON:
    """Open a tab of the app's *Home*. The app hears of it if it is subscribed to ``app_home_opened``.

    An app that is subscribed to ``assistant_thread_started`` has the older assistant view. The tab ``messages`` also
    starts a thread of such an app.
    """
    user, tab = act.user.id, act.asked.tab
    shown = act.simulator.interactions.views.home(user)
    view = {"view": shown.content} if shown is not None and tab == "home" else {}
    direct = act.workspace.direct_messages(user).id
    opened = act.event("app_home_opened", user=user, channel=direct, tab=tab, **view)
    if tab == "messages" and STARTED in act.simulator.subscriptions:
        _start_thread(act, user)
    return {"event": opened}


def _start_thread(act: Act[Home], user: str) -> None:
    """Start an assistant's thread, with the message that Slack posts as its root."""
    workspace = act.workspace
    direct = workspace.direct_messages(user)
    root = workspace.speak(direct, "New Assistant Thread", subtype="assistant_app_thread")
    workspace.assistant_threads[user] = root.ts
    entities = workspace.looked_at.get(user, {}).get("entities", ())
    _tell_thread(act, STARTED, user, root.ts, next((each["value"] for each in entities), None))


def _tell_thread(
    act: Act[Home] | Act[Look], kind: str, user: str, thread_ts: str, channel: str | None
) -> JSON | None:
    """Send an event of an assistant's thread. Its context is empty if the person looks at no channel."""
    context = {"channel_id": channel, "team_id": act.workspace.team_id} if channel else {}
    place = {"channel_id": act.workspace.direct_messages(user).id, "thread_ts": thread_ts}
    return act.event(kind, assistant_thread={"user_id": user, "context": context, **place})


async def look(act: Act[Look]) -> JSON:
    """Let a person look at a channel. An app with the agent view hears ``app_context_changed``.

    An app with the older assistant view hears ``assistant_thread_context_changed``: of the given thread, or of the
    person's newest one.
    """
    workspace, user, channel = act.workspace, act.user.id, act.channel.id
    entity = {"type": "slack#/types/channel_id", "value": channel, "team_id": workspace.team_id}
    context: JSON = {"entities": [entity]}
    workspace.looked_at[user] = context
    if thread_ts := act.asked.thread_ts or workspace.assistant_threads.get(user):
        return {"event": _tell_thread(act, CHANGED, user, thread_ts, channel)}
    direct = workspace.direct_messages(user).id
    return {"event": act.event("app_context_changed", user=user, channel=direct, context=context)}
