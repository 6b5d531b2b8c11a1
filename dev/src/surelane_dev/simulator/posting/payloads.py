"""Make the payloads that Slack posts for commands, shortcuts, buttons, menus and modals."""

from collections.abc import Iterator
from dataclasses import dataclass

from surelane_dev.simulator.installs import enterprise_json
from surelane_dev.simulator.interactions import Interactions
from surelane_dev.simulator.views import View
from surelane_dev.simulator.workspace.blocks import elements_of
from surelane_dev.simulator.workspace.model import JSON, Channel, Message, User
from surelane_dev.simulator.workspace.shapes import message_json
from surelane_dev.simulator.workspace.workspace import Workspace

VERIFICATION = "simulated-verification-token"
"""Slack's old proof of the sender. It proves nothing here; the signature does."""


@dataclass(frozen=True, slots=True)
class Payloads:
    """What a workspace's app gets as a person uses it."""

    workspace: Workspace
    interactions: Interactions
    user: User

    def command(self, command: str, text: str, channel: Channel, *, wide: bool = False) -> dict[str, str]:
        """Return the form of a slash command. ``wide``: the organization has installed the app."""
        here, user = self.workspace, self.user
        form = {"token": VERIFICATION, "team_id": here.team_id, "team_domain": _domain(here)}
        form |= {"enterprise_id": here.enterprise_id} if here.enterprise_id else {}
        form |= {"channel_id": channel.id, "channel_name": _name(channel)}
        form |= {"user_id": user.id, "user_name": user.name, "command": command, "text": text}
        form |= {"api_app_id": here.app_id, "is_enterprise_install": str(wide).lower()}
        form["response_url"] = self._response_url(channel.id)
        return form | {"trigger_id": self._trigger()}

    def shortcut(self, callback_id: str) -> JSON:
        """Return the payload of a global shortcut. It has no channel, and so no ``response_url``."""
        return self._payload("shortcut") | self._called(callback_id) | {"trigger_id": self._trigger()}

    def message_action(self, callback_id: str, message: Message) -> JSON:
        """Return the payload of a message's shortcut."""
        payload = self._payload("message_action") | self._called(callback_id) | self._shown(message)
        payload |= {
            "trigger_id": self._trigger(),
            "response_url": self._response_url(message.channel, message.ts),
        }
        return payload | {"message_ts": message.ts}

    def action(self, place: Message | View, action: JSON, state: JSON | None = None) -> JSON:
        """Return the payload for a used button or menu of a message, a modal or the *Home* tab."""
        channel, state = "" if isinstance(place, View) else place.channel, state or {"values": {}}
        done = {"trigger_id": self._trigger(), "actions": [action | {"action_ts": self.workspace.next_ts()}]}
        payload = self._payload("block_actions") | done | self._where(place, state)
        if isinstance(place, View):
            return payload
        return payload | {"state": state, "response_url": self._response_url(channel, place.ts)}

    def suggestion(self, place: Message | View, element: JSON, query: str, state: JSON) -> JSON:
        """Return the payload of a menu that asks for its options. It has neither a trigger id nor a response URL.

        ``element``: the menu's ``action_id`` and ``block_id``. ``state``: what a view's other inputs hold.
        """
        return self._payload("block_suggestion") | self._where(place, state) | element | {"value": query}

    def view(self, kind: str, view: JSON) -> JSON:
        """Return the payload of a submitted or closed modal: ``view_submission`` or ``view_closed``."""
        payload = self._payload(kind) | {"view": view}
        if kind == "view_closed":
            return payload | {"is_cleared": False}
        return payload | {"trigger_id": self._trigger(), "response_urls": list(self._response_urls(view))}

    def _payload(self, kind: str) -> JSON:
        """Return what all have. ``team`` is the person's, also in a view or message of this workspace's app."""
        user, found = self.user, self.workspace.member(self.user.id)
        home = found[0] if found else self.workspace
        person = {"id": user.id, "username": user.name, "name": user.name, "team_id": home.team_id}
        payload: JSON = {"type": kind, "user": person, "api_app_id": self.workspace.app_id}
        payload |= {"token": VERIFICATION, "team": {"id": home.team_id, "domain": _domain(home)}}
        return payload | {"enterprise": enterprise_json(home), "is_enterprise_install": False}

    def _called(self, callback_id: str) -> JSON:
        return {"callback_id": callback_id, "action_ts": self.workspace.next_ts()}

    def _trigger(self) -> str:
        return self.interactions.new_trigger(self.user.id)

    def _response_url(self, channel: str, message_ts: str | None = None) -> str:
        team = self.workspace.team_id
        return self.interactions.new_response_url(channel, self.user.id, message_ts, team_id=team)

    def _response_urls(self, view: JSON) -> Iterator[JSON]:
        """Yield a response URL for each channel that the user chose in a menu that asks for one."""
        for block, element in elements_of(view["blocks"]):
            if element.get("response_url_enabled"):
                named = {"block_id": block["block_id"], "action_id": element["action_id"]}
                value = view["state"]["values"][named["block_id"]][named["action_id"]]
                if channel := value.get("selected_conversation") or value.get("selected_channel"):
                    yield named | {"channel_id": channel, "response_url": self._response_url(channel)}

    def _where(self, place: Message | View, state: JSON) -> JSON:
        if isinstance(place, View):
            shown = {"type": "view", "view_id": place.id}
            return {"container": shown, "view": place.content | {"state": state}}
        container: JSON = {"type": "message", "message_ts": place.ts, "channel_id": place.channel}
        thread = {"thread_ts": place.thread_ts} if place.thread_ts else {}
        container |= {"is_ephemeral": place.visible_to is not None, **thread}
        return {"container": container, **self._shown(place)}

    def _shown(self, message: Message) -> JSON:
        channel = self.workspace.channels[message.channel]
        place = {"id": channel.id, "name": _name(channel)}
        return {"channel": place, "message": message_json(self.workspace, message)}


def _name(channel: Channel) -> str:
    return "directmessage" if channel.is_im else channel.name


def _domain(workspace: Workspace) -> str:
    return workspace.name.lower().replace(" ", "-")
