"""Run a simulated Slack in the test's process. The test itself stores its events in the queue."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_dev.simulator.faults import Fault
from surelane_dev.simulator.posting.events import envelope, events_of
from surelane_dev.simulator.server import simulator_app
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.simulator_settings import SimulatorSettings
from surelane_dev.simulator.workspace.model import Message, Posted
from surelane_service.probes import serving
from surelane_service.service_settings import load_settings


@dataclass(frozen=True)
class Stand:
    """A workspace, its Web API, and the queue for its events."""

    simulator: Simulator
    api: str
    queue: Queue

    async def mention(
        self, text: str, channel: str = "general", thread_ts: str | None = None, name: str = "ada"
    ) -> tuple[int, Message]:
        """Let a person mention the bot; return the event's id in the queue, and the message."""
        workspace = self.simulator.workspace
        room, person = workspace.channel(channel), workspace.user(name)
        assert room is not None
        assert person is not None
        message = workspace.post(room, person.id, f"<@{workspace.bot.id}> {text}", thread_ts=thread_ts)
        (inner,) = events_of(workspace, Posted(message), {"app_mention"})
        return await self.queue.insert_event(json.dumps(envelope(workspace, inner))), message

    def answers(self, message: Message) -> list[str]:
        """Return the texts in the message's thread, oldest first. Messages that only show tasks are left out."""
        replies = self.simulator.workspace.channels[message.channel].replies(message.thread_ts or message.ts)
        return [shown(reply) for reply in replies if not reply.only_tasks]


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


def fault(kind: str, *, methods: Sequence[str] = (), retry_after: int = 1, delay: float = 5) -> Fault:
    """Return a fault that happens once."""
    given = {"kind": kind, "methods": list(methods), "retry_after": retry_after, "delay": delay}
    return Fault.model_validate(given)
