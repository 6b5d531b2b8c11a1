"""Make the payloads that Slack posts for slash commands, buttons and modals."""

from secrets import token_hex

from dev.simulator.interactions import Interactions
from dev.simulator.posting.events import new_id
from dev.simulator.workspace.model import JSON, Channel, Message, User
from dev.simulator.workspace.shapes import message_json
from dev.simulator.workspace.workspace import Workspace


def command_form(
    workspace: Workspace, interactions: Interactions, *, command: str, text: str, channel: Channel, user: User
) -> dict[str, str]:
    """Return the form of a slash command."""
    return {
        "token": "simulated-verification-token",
        "team_id": workspace.team_id,
        "team_domain": workspace.name.lower(),
        "channel_id": channel.id,
        "channel_name": "directmessage" if channel.is_im else channel.name,
        "user_id": user.id,
        "user_name": user.name,
        "command": command,
        "text": text,
        "api_app_id": workspace.app_id,
        "is_enterprise_install": "false",
        "response_url": interactions.new_response_url(channel.id, user.id),
        "trigger_id": interactions.new_trigger(user.id),
    }


def action_payload(
    workspace: Workspace, interactions: Interactions, *, message: Message, user: User, action: JSON
) -> JSON:
    """Return the payload for a pressed button of a message."""
    channel = workspace.channels[message.channel]
    container = {
        "type": "message",
        "message_ts": message.ts,
        "channel_id": channel.id,
        "is_ephemeral": message.visible_to is not None,
    }
    return _payload(workspace, interactions, "block_actions", user) | {
        "container": container | ({"thread_ts": message.thread_ts} if message.thread_ts else {}),
        "channel": {"id": channel.id, "name": "directmessage" if channel.is_im else channel.name},
        "message": message_json(workspace, message),
        "state": {"values": {}},
        "response_url": interactions.new_response_url(channel.id, user.id, message.ts),
        "actions": [action | {"action_ts": workspace.next_ts()}],
    }


def view_payload(
    workspace: Workspace, interactions: Interactions, *, kind: str, view: JSON, user: User
) -> JSON:
    """Return the payload of a submitted or closed modal: ``view_submission`` or ``view_closed``."""
    payload = _payload(workspace, interactions, kind, user) | {"view": view, "response_urls": []}
    if kind == "view_closed":
        payload |= {"is_cleared": False}
    return payload


def opened_view(workspace: Workspace, content: JSON) -> JSON:
    """Return a view as Slack sends it to the app that opened it."""
    view_id = new_id("V")
    return {
        "private_metadata": "",
        "callback_id": "",
        "clear_on_close": False,
        "notify_on_close": False,
        "external_id": "",
        "close": None,
        "submit": None,
        **content,
        "id": view_id,
        "team_id": workspace.team_id,
        "state": {"values": {}},
        "hash": f"{workspace.next_ts()}.{token_hex(4)}",
        "previous_view_id": None,
        "root_view_id": view_id,
        "app_id": workspace.app_id,
        "app_installed_team_id": workspace.team_id,
        "bot_id": workspace.bot_id,
    }


def _payload(workspace: Workspace, interactions: Interactions, kind: str, user: User) -> JSON:
    return {
        "type": kind,
        "user": {"id": user.id, "username": user.name, "name": user.name, "team_id": workspace.team_id},
        "api_app_id": workspace.app_id,
        "token": "simulated-verification-token",
        "trigger_id": interactions.new_trigger(user.id),
        "team": {"id": workspace.team_id, "domain": workspace.name.lower()},
        "enterprise": None,
        "is_enterprise_install": False,
    }
