"""Run a simulated Slack in the test's process. The test itself stores its events in the queue."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_dev.simulator.app_answers import settle_submission
from surelane_dev.simulator.faults import Fault
from surelane_dev.simulator.posting.delivery import DeliveryAttempt
from surelane_dev.simulator.posting.events import envelope, events_of
from surelane_dev.simulator.posting.payloads import Payloads
from surelane_dev.simulator.server import simulator_app
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.simulator_settings import SimulatorSettings
from surelane_dev.simulator.views import View
from surelane_dev.simulator.workspace.model import Channel, Message, Posted, User
from surelane_service.probes import serving
from surelane_service.service_settings import load_settings
from tests.system.ingest_client import Slack


@dataclass(frozen=True)
class Stand:
    """A workspace, its Web API, and the queue for its events."""

    simulator: Simulator
    api: str
    queue: Queue

    def user(self, name: str = "ada") -> User:
        """Return a person of the workspace."""
        found = self.simulator.workspace.user(name)
        assert found is not None
        return found

    def room(self, name: str = "general") -> Channel:
        """Return a channel of the workspace."""
        found = self.simulator.workspace.channel(name)
        assert found is not None
        return found

    def calls(self, *names: str) -> list[str]:
        """Return the methods that were called, by default all, oldest first."""
        called = [str(call["method"]) for call in self.simulator.api.calls]
        return [name for name in called if not names or name in names]

    def fail(self, kind: str, *methods: str, **more: Any) -> None:
        """Let the next call of these methods fail."""
        self.simulator.faults.add(fault(kind, methods=methods, **more))

    async def store(self, payload: object) -> int:
        """Store what Slack would post; return the event's id in the queue."""
        return await self.queue.insert_event(json.dumps(payload))

    async def mention(
        self,
        text: str,
        channel: str = "general",
        thread_ts: str | None = None,
        name: str = "ada",
        *,
        deleted: bool = False,
        **fields: Any,
    ) -> tuple[int, Message]:
        """Let a person mention the bot, and delete that; return the event's id in the queue, and the message.

        ``fields``: further ones of the message.
        """
        workspace, room = self.simulator.workspace, self.room(channel)
        text = f"<@{workspace.bot.id}> {text}"
        message = workspace.post(room, self.user(name).id, text, thread_ts=thread_ts, **fields)
        (inner,) = events_of(workspace, Posted(message), {"app_mention"})
        if deleted:
            workspace.delete(message)
        return await self.store(envelope(workspace, inner)), message

    def command(
        self, command: str, text: str = "", room: Channel | None = None, name: str = "ada"
    ) -> dict[str, str]:
        """Return what Slack posts for a slash command."""
        return self.payloads(name).command(command, text, room or self.room())

    def click(self, message: Message, action: dict[str, Any], name: str = "ada") -> dict[str, Any]:
        """Return what Slack posts for a click on an element of a message."""
        return self.payloads(name).action(message, action)

    def submission(self, view: dict[str, Any], values: Any = None, name: str = "ada") -> dict[str, Any]:
        """Return what Slack posts when a person sends a modal with these values, or closes it without any."""
        kind = "view_closed" if values is None else "view_submission"
        view = view if values is None else view | {"state": {"values": values}}
        return self.payloads(name).view(kind, view)

    def payloads(self, name: str) -> Payloads:
        """Return what Slack posts as a person uses the app."""
        return Payloads(self.simulator.workspace, self.simulator.interactions, self.user(name))

    async def submit(self, ingest: Slack, view: View, values: Any) -> dict[str, str]:
        """Send a modal to ingest, let the simulated Slack act on the answer, and return the errors that it shows."""
        payload = self.submission(view.content, values, view.user)
        answer = await ingest.form("/slack/events", {"payload": json.dumps(payload)})
        attempt = DeliveryAttempt(0.0, 0.0, 0, None, answer.status, None, answer=answer.body)
        workspace, views = self.simulator.workspace, self.simulator.interactions.views
        settled = settle_submission(workspace, views, view, attempt)
        return {"": settled.message} if settled.message else settled.errors

    def shortcut(self, callback_id: str, sort: str = "shortcut") -> dict[str, Any]:
        """Return what Slack posts for Ada's shortcut."""
        ada, team = self.user().id, {"id": self.simulator.workspace.team_id}
        trigger = self.simulator.interactions.new_trigger(ada)
        about = {"type": sort, "callback_id": callback_id, "trigger_id": trigger}
        return {**about, "team": team, "user": {"id": ada}}

    def replies(self, message: Message) -> list[Message]:
        """Return the messages in a message's thread."""
        return self.simulator.workspace.channels[message.channel].replies(message.thread_ts or message.ts)

    def answers(self, message: Message) -> list[str]:
        """Return the texts in the message's thread, oldest first. Messages that only show tasks are left out."""
        return [shown(reply) for reply in self.replies(message) if not reply.only_tasks]


class Person:
    """Somebody who clicks."""

    def __init__(self, slack: Stand, name: str) -> None:
        self.slack, self.name, self.user = slack, name, slack.user(name)

    async def click(self, message: Message, element: dict[str, Any], block: str, **chosen: Any) -> int:
        """Click on an element of a message; return the event's id."""
        action = {key: element[key] for key in ("type", "action_id", "value") if key in element}
        payload = self.slack.click(message, action | {"block_id": block} | chosen, self.name)
        return await self.slack.store(payload)

    async def press(self, message: Message, number: int = 0) -> int:
        """Press a button of a message."""
        actions = message.blocks[-1]
        return await self.click(message, actions["elements"][number], actions["block_id"])

    def written(self, view: View, text: str) -> str:
        """Return the payload of a modal that this person sends."""
        values = {"answer": {"text": {"type": "plain_text_input", "value": text}}}
        return json.dumps(self.slack.submission(view.content, values, self.name))


def private(slack: Stand, asked: Message) -> list[str]:
    """Return what was said to one person alone."""
    room = slack.simulator.workspace.channels[asked.channel]
    said = [message for message in room.messages.values() if message.thread_ts == asked.ts]
    return [message.text for message in said if message.visible_to is not None]


def shown(message: Message) -> str:
    """Return the text that a message shows. An update shows its blocks; its text is for notifications."""
    parts = [block["text"] for block in message.blocks if block["type"] == "markdown"]
    return "".join(parts) if parts and message.edited_ts else message.text


@asynccontextmanager
async def slack_stand(connection: Connection) -> AsyncIterator[Stand]:
    """Serve a simulated Slack for the length of the block."""
    settings = load_settings(SimulatorSettings, posting=False, subscriptions=frozenset(), retry_delays=())
    simulator = Simulator(settings, "")
    async with serving(simulator_app(simulator), 0, setting="none", host="127.0.0.1") as port:
        simulator.interactions.public_url = f"http://127.0.0.1:{port}"
        yield Stand(simulator, f"http://127.0.0.1:{port}/api/", Queue(connection))
    await simulator.sender.close()


def fault(
    kind: str, *, methods: Sequence[str] = (), retry_after: int | str = 1, delay: float = 5, **more: object
) -> Fault:
    """Return a fault that happens once."""
    given = {"kind": kind, "methods": list(methods), "retry_after": retry_after, "delay": delay}
    return Fault.model_validate(given | more)
