"""Let Slack's events and requests reach a Bolt app, and see what comes of them."""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg

from surelane.calls import Connection
from surelane_dev.simulator.posting.events import envelope
from surelane_service.intake import Intake
from tests.processes import Service, service
from tests.system.slack_stand import Stand, slack_stand
from tests.system.worker import ended, environment

TOKEN = "xoxb-any"


def bolt_worker(
    database: str, slack: Stand, app: str, **settings: str
) -> AbstractAsyncContextManager[Service]:
    """Run a worker with a Bolt app."""
    given = {
        "SURELANE_HANDLERS": app,
        "SLACK_API_URL": slack.api,
        "SLACK_BOT_TOKEN": TOKEN,
        "SLACK_SIGNING_SECRET": "unused",  # older releases of slack-bolt make no app without it
        **settings,
    }
    imported = "PYTHONPATH" not in settings  # only a new interpreter reads it
    return service("surelane_worker", environment(database, **given), imported=imported)


@dataclass(frozen=True)
class Bolt:
    """A worker that runs a Bolt app, and its Slack."""

    slack: Stand
    connection: Connection
    worker: Service

    async def completed(self, identity: int, attempts: int = 1) -> dict[str, Any]:
        """Wait until an event has ended well, and return its row."""
        row = dict(await ended(self.connection, identity))
        assert (row["outcome"], row["attempts"]) == ("completed", attempts), row["errors"]
        return row

    async def happens(self, inner: dict[str, Any]) -> int:
        """Store an event of the Events API."""
        workspace = self.slack.simulator.workspace
        return await self.slack.store(envelope(workspace, {"event_ts": workspace.next_ts(), **inner}))

    async def asks(self, payload: dict[str, Any], attempts: int = 1) -> Any:
        """Store a command or an interaction whose request waits. Return the answer once the event has ended."""
        waiting: dict[str, Any] = {"waits": [timedelta(seconds=60)], "channel": "test"}
        ((stored, _),) = await Intake(self.connection).insert_requests(
            [json.dumps(payload)], traceparents=[None], item_keys=[None], **waiting
        )
        await self.completed(stored.id, attempts)
        text = await self.connection.fetchval(
            "select answer from agent.request where event_id = $1 and channel = 'test'", stored.id
        )
        return "no answer" if text is None else json.loads(text)

    def said(self) -> list[str]:
        """Return the texts of the messages in the general channel, outside of threads."""
        return [message.text for message in self.slack.room().messages.values() if message.thread_ts is None]

    def whispered(self) -> list[str]:
        """Return the texts of the direct messages."""
        room = self.slack.simulator.workspace.direct_messages(self.slack.user().id)
        return [message.text for message in room.messages.values()]


@asynccontextmanager
async def bolt(database: str, app: str, **settings: str) -> AsyncIterator[Bolt]:
    """Run a worker with a Bolt app, and a simulated Slack, for the length of the block."""
    connection = await asyncpg.connect(database)
    try:
        async with slack_stand(connection) as slack, bolt_worker(database, slack, app, **settings) as running:
            yield Bolt(slack, connection, running)
    finally:
        await connection.close()
