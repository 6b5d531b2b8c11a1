"""Slash commands, buttons and modals: what Slack posts for them, and the short-lived keys that come along."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from secrets import token_hex, token_urlsafe
from typing import Literal

from dev.simulator.events import new_id
from dev.simulator.model import JSON, Channel, Message, User
from dev.simulator.shapes import message_json
from dev.simulator.workspace import Workspace

TRIGGER_LASTS = timedelta(seconds=3)
RESPONSE_LASTS = timedelta(minutes=30)
RESPONSE_USES = 5

TriggerState = Literal["valid", "unknown", "expired", "used"]


@dataclass(slots=True)
class ResponseUrl:
    """Where an app may answer an interaction: five times in thirty minutes."""

    channel: str
    user: str
    message_ts: str | None
    until: float
    uses_left: int = RESPONSE_USES


@dataclass(slots=True)
class View:
    """A modal that is open in front of a user."""

    user: str
    content: JSON


class Interactions:
    """The trigger ids, response URLs and modals that are alive."""

    def __init__(self, public_url: str, now: Callable[[], float] = time.time) -> None:
        self.public_url = public_url
        self.responses: dict[str, ResponseUrl] = {}
        self.views: dict[str, View] = {}
        self.shown: Callable[[View], None] = lambda _: None
        self._now = now
        self._triggers: dict[str, tuple[float, str]] = {}
        self._used: set[str] = set()

    def new_trigger(self, user: str) -> str:
        """A trigger id, good for three seconds and one modal."""
        trigger = f"{int(self._now() * 1000)}.{token_hex(6)}.{token_hex(16)}"
        self._triggers[trigger] = (self._now() + TRIGGER_LASTS.total_seconds(), user)
        return trigger

    def use_trigger(self, trigger: str) -> tuple[TriggerState, str]:
        """Spends a trigger id; answers how that went and whose it was."""
        if trigger in self._used:
            return "used", ""
        until, user = self._triggers.get(trigger, (None, ""))
        if until is None:
            return "unknown", ""
        if until < self._now():
            return "expired", user
        self._used.add(trigger)
        return "valid", user

    def show(self, view: View) -> None:
        """Puts a modal in front of its user, in the place of its earlier state."""
        self.views[view.content["id"]] = view
        self.shown(view)

    def close(self, view_id: str) -> View | None:
        """Takes a modal away."""
        return self.views.pop(view_id, None)

    def new_response_url(self, channel: str, user: str, message_ts: str | None = None) -> str:
        """A URL at which the app may answer."""
        key = token_urlsafe(18)
        self.responses[key] = ResponseUrl(
            channel, user, message_ts, self._now() + RESPONSE_LASTS.total_seconds()
        )
        return f"{self.public_url}/response/{key}"

    def spend_response(self, key: str) -> ResponseUrl | str:
        """Counts one use of a response URL; the error's name where it has none left."""
        response = self.responses.get(key)
        if response is None:
            return "no_such_url"
        if response.until < self._now():
            return "expired_url"
        if not response.uses_left:
            return "used_url"
        response.uses_left -= 1
        return response


def command_form(
    workspace: Workspace, interactions: Interactions, *, command: str, text: str, channel: Channel, user: User
) -> dict[str, str]:
    """The form that a slash command is posted as."""
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


def action_form(
    workspace: Workspace, interactions: Interactions, *, message: Message, user: User, action: JSON
) -> dict[str, str]:
    """The form that a press of a message's button is posted as."""
    channel = workspace.channels[message.channel]
    container = {
        "type": "message",
        "message_ts": message.ts,
        "channel_id": channel.id,
        "is_ephemeral": message.visible_to is not None,
    }
    payload = _payload(workspace, interactions, "block_actions", user) | {
        "container": container | ({"thread_ts": message.thread_ts} if message.thread_ts else {}),
        "channel": {"id": channel.id, "name": "directmessage" if channel.is_im else channel.name},
        "message": message_json(workspace, message),
        "state": {"values": {}},
        "response_url": interactions.new_response_url(channel.id, user.id, message.ts),
        "actions": [action | {"action_ts": workspace.next_ts()}],
    }
    return {"payload": json.dumps(payload)}


def view_form(
    workspace: Workspace, interactions: Interactions, *, kind: str, view: JSON, user: User
) -> dict[str, str]:
    """The form that a submitted or closed modal is posted as: ``view_submission`` or ``view_closed``."""
    payload = _payload(workspace, interactions, kind, user) | {"view": view, "response_urls": []}
    if kind == "view_closed":
        payload |= {"is_cleared": False}
    return {"payload": json.dumps(payload)}


def opened_view(workspace: Workspace, content: JSON) -> JSON:
    """A view as Slack answers it to the app that opened it."""
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
