"""Make the payloads that Slack posts for commands, shortcuts, buttons, menus and modals."""

from collections.abc import Iterator

from surelane_dev.simulator.installs import enterprise_json
from surelane_dev.simulator.interactions import Interactions
from surelane_dev.simulator.views import View
from surelane_dev.simulator.workspace.blocks import elements_of
from surelane_dev.simulator.workspace.dialogs import Dialog
from surelane_dev.simulator.workspace.model import JSON, Channel, Message, User
from surelane_dev.simulator.workspace.shapes import message_json
from surelane_dev.simulator.workspace.workspace import Workspace

VERIFICATION = "simulated-verification-token"
"""Slack's old proof of the sender. It proves nothing here; the signature does."""


def command_form(
    workspace: Workspace,
    interactions: Interactions,
    *,
    command: str,
    text: str,
    channel: Channel,
    user: User,
    wide: bool = False,
) -> dict[str, str]:
    """Return the form of a slash command. ``wide``: the organization has installed the app."""
    return {
        "token": VERIFICATION,
        "team_id": workspace.team_id,
        "team_domain": _domain(workspace),
        **({"enterprise_id": workspace.enterprise_id} if workspace.enterprise_id else {}),
        "channel_id": channel.id,
        "channel_name": _name(channel),
        "user_id": user.id,
        "user_name": user.name,
        "command": command,
        "text": text,
        "api_app_id": workspace.app_id,
        "is_enterprise_install": str(wide).lower(),
        "response_url": interactions.new_response_url(channel.id, user.id, team_id=workspace.team_id),
        "trigger_id": interactions.new_trigger(user.id, channel.id),
    }


def shortcut_payload(
    workspace: Workspace, interactions: Interactions, *, callback_id: str, user: User
) -> JSON:
    """Return the payload of a global shortcut. It has no channel, and so no ``response_url``."""
    return _payload(workspace, "shortcut", user) | {
        "callback_id": callback_id,
        "trigger_id": interactions.new_trigger(user.id),
        "action_ts": workspace.next_ts(),
    }


def message_action_payload(
    workspace: Workspace, interactions: Interactions, *, callback_id: str, message: Message, user: User
) -> JSON:
    """Return the payload of a message's shortcut."""
    channel = workspace.channels[message.channel]
    return _payload(workspace, "message_action", user) | {
        "callback_id": callback_id,
        "trigger_id": interactions.new_trigger(user.id, channel.id),
        "response_url": interactions.new_response_url(
            channel.id, user.id, message.ts, team_id=workspace.team_id
        ),
        "action_ts": workspace.next_ts(),
        "channel": {"id": channel.id, "name": _name(channel)},
        "message_ts": message.ts,
        "message": message_json(workspace, message),
    }


def action_payload(
    workspace: Workspace,
    interactions: Interactions,
    *,
    message: Message,
    user: User,
    action: JSON,
    state: JSON | None = None,
) -> JSON:
    """Return the payload for a used button or menu of a message."""
    return (
        _block_actions(workspace, interactions, user, action, message.channel)
        | _of_message(workspace, message)
        | {
            "state": state or {"values": {}},
            "response_url": interactions.new_response_url(
                message.channel, user.id, message.ts, team_id=workspace.team_id
            ),
        }
    )


def view_action_payload(
    workspace: Workspace, interactions: Interactions, *, view: View, user: User, action: JSON, state: JSON
) -> JSON:
    """Return the payload for a used button or menu of a modal or of the *Home* tab."""
    return _block_actions(workspace, interactions, user, action) | _of_view(view, state)


def suggestion_payload(
    workspace: Workspace, *, place: Message | View, user: User, element: JSON, query: str, state: JSON
) -> JSON:
    """Return the payload of a menu that asks for its options. It has neither a trigger id nor a response URL.

    Args:
        workspace: the workspace.
        place: the message or view with the menu.
        user: the person who types.
        element: the menu's ``action_id`` and ``block_id``.
        query: what the person has typed.
        state: what a view's other inputs hold.
    """
    where = _of_view(place, state) if isinstance(place, View) else _of_message(workspace, place)
    return _payload(workspace, "block_suggestion", user) | where | element | {"value": query}


def view_payload(
    workspace: Workspace, interactions: Interactions, *, kind: str, view: JSON, user: User
) -> JSON:
    """Return the payload of a submitted or closed modal: ``view_submission`` or ``view_closed``."""
    payload = _payload(workspace, kind, user) | {"view": view}
    if kind == "view_closed":
        return payload | {"is_cleared": False}
    return payload | {
        "trigger_id": interactions.new_trigger(user.id),
        "response_urls": list(_response_urls(interactions, view, user)),
    }


def dialog_payload(
    workspace: Workspace,
    interactions: Interactions,
    *,
    dialog: Dialog,
    user: User,
    submission: JSON | None = None,
) -> JSON:
    """Return the payload of a submitted dialog, or without a submission of a cancelled one."""
    channel = workspace.channels[dialog.channel]
    kind = "dialog_cancellation" if submission is None else "dialog_submission"
    return (
        _payload(workspace, kind, user)
        | {
            "callback_id": dialog.content["callback_id"],
            "state": dialog.content.get("state", ""),
            "channel": {"id": channel.id, "name": _name(channel)},
            "action_ts": workspace.next_ts(),
            "response_url": interactions.new_response_url(channel.id, user.id, team_id=workspace.team_id),
        }
        | ({} if submission is None else {"submission": submission})
    )


def _response_urls(interactions: Interactions, view: JSON, user: User) -> Iterator[JSON]:
    """Yield a response URL for each channel that the user chose in a menu that asks for one."""
    for block, element in elements_of(view["blocks"]):
        if element.get("response_url_enabled"):
            named = {"block_id": block["block_id"], "action_id": element["action_id"]}
            value = view["state"]["values"][named["block_id"]][named["action_id"]]
            channel = value.get("selected_conversation") or value.get("selected_channel")
            if channel:
                url = interactions.new_response_url(channel, user.id, team_id=view["team_id"])
                yield named | {"channel_id": channel, "response_url": url}


def _block_actions(
    workspace: Workspace, interactions: Interactions, user: User, action: JSON, channel: str = ""
) -> JSON:
    return _payload(workspace, "block_actions", user) | {
        "trigger_id": interactions.new_trigger(user.id, channel),
        "actions": [action | {"action_ts": workspace.next_ts()}],
    }


def _of_message(workspace: Workspace, message: Message) -> JSON:
    channel = workspace.channels[message.channel]
    container = {
        "type": "message",
        "message_ts": message.ts,
        "channel_id": channel.id,
        "is_ephemeral": message.visible_to is not None,
    }
    return {
        "container": container | ({"thread_ts": message.thread_ts} if message.thread_ts else {}),
        "channel": {"id": channel.id, "name": _name(channel)},
        "message": message_json(workspace, message),
    }


def _of_view(view: View, state: JSON) -> JSON:
    return {"container": {"type": "view", "view_id": view.id}, "view": view.content | {"state": state}}


def _name(channel: Channel) -> str:
    return "directmessage" if channel.is_im else channel.name


def _payload(workspace: Workspace, kind: str, user: User) -> JSON:
    """Return what all payloads have. ``team`` is the person's, also in a view or message of this workspace's app."""
    home = found[0] if (found := workspace.member(user.id)) else workspace
    return {
        "type": kind,
        "user": {"id": user.id, "username": user.name, "name": user.name, "team_id": home.team_id},
        "api_app_id": workspace.app_id,
        "token": VERIFICATION,
        "team": {"id": home.team_id, "domain": _domain(home)},
        "enterprise": enterprise_json(home),
        "is_enterprise_install": False,
    }


def _domain(workspace: Workspace) -> str:
    return workspace.name.lower().replace(" ", "-")
