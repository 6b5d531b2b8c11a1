"""Let Slack's events and requests reach a Bolt app, and see what comes of them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
from dev.simulator.posting.events import envelope
from dev.simulator.workspace.model import User

from surelane.calls import Connection
from surelane_service.intake import Intake
from tests.processes import Service, service
from tests.system.slack_stand import Stand, slack_stand
from tests.system.worker import ended, environment

TOKEN = "xoxb-any"


def bolt_environment(database: str, slack: Stand, app: str, folder: Path, **settings: str) -> dict[str, str]:
    """Return the settings of a worker that runs a Bolt app."""
    given = {
        "SURELANE_HANDLERS": app,
        "SLACK_API_URL": slack.api,
        "SLACK_BOT_TOKEN": TOKEN,
        "PYTHONPATH": str(folder),
        **settings,
    }
    return environment(database, **given)


@dataclass(frozen=True)
class Bolt:
    """A worker that runs a Bolt app, and its Slack."""

    slack: Stand
    connection: Connection
    worker: Service

    @property
    def ada(self) -> User:
        """The person who does everything."""
        ada = self.slack.simulator.workspace.user("ada")
        assert ada is not None
        return ada

    async def end(self, identity: int) -> dict[str, Any]:
        """Wait until an event has ended, and return its row."""
        return dict(await ended(self.connection, identity))

    async def completed(self, identity: int, attempts: int = 1) -> dict[str, Any]:
        """Wait until an event has ended well."""
        row = await self.end(identity)
        assert (row["outcome"], row["attempts"]) == ("completed", attempts), row["errors"]
        return row

    async def happens(self, inner: dict[str, Any], **outer: Any) -> int:
        """Store an event of the Events API."""
        workspace = self.slack.simulator.workspace
        whole = envelope(workspace, {"event_ts": workspace.next_ts(), **inner}) | outer
        return await self.slack.queue.insert_event(json.dumps(whole))

    async def asks(self, payload: dict[str, Any], attempts: int = 1) -> Any:
        """Store a command or an interaction whose request waits. Return the answer once the event has ended."""
        ((stored, _),) = await Intake(self.connection).insert_requests(
            [json.dumps(payload)],
            traceparents=[None],
            item_keys=[None],
            waits=[timedelta(seconds=60)],
            channel="test",
        )
        await self.completed(stored.id, attempts)
        return await self.answer(stored.id)

    async def answer(self, identity: int) -> Any:
        """Return the answer to a request that waits."""
        text = await self.connection.fetchval(
            "select answer from agent.request where event_id = $1 and channel = 'test'", identity
        )
        return "no answer" if text is None else json.loads(text)

    def said(self, channel: str = "general") -> list[str]:
        """Return the texts of the messages in a channel, outside of threads."""
        room = self.slack.simulator.workspace.channel(channel)
        assert room is not None
        return [message.text for message in room.messages.values() if message.thread_ts is None]

    def whispered(self) -> list[str]:
        """Return the texts of the direct messages."""
        messages = self.slack.simulator.workspace.direct_messages(self.ada.id).messages.values()
        return [message.text for message in messages]


@asynccontextmanager
async def bolt(database: str, app: str, folder: Path, **settings: str) -> AsyncIterator[Bolt]:
    """Run a worker with a Bolt app, and a simulated Slack, for the length of the block."""
    connection = await asyncpg.connect(database)
    try:
        async with slack_stand(connection) as slack:
            env = bolt_environment(database, slack, app, folder, **settings)
            # Only a new interpreter reads PYTHONPATH.
            async with service("surelane_worker", env, imported=False) as running:
                yield Bolt(slack, connection, running)
    finally:
        await connection.close()
