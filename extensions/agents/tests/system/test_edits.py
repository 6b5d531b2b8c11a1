"""A person edits or deletes a message: its turn is begun anew or cancelled, through ingest, queue and worker."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from extensions.agents.tests.system.model_server import ModelServer, Reply, model_server, says, settings
from surelane.calls import Connection
from surelane_dev.simulator.posting.events import envelope, events_of
from surelane_dev.simulator.workspace.model import Change, Channel, Message
from surelane_encryption.keys import new_key
from tests.processes import until
from tests.system.ingest_client import Slack, served
from tests.system.slack_stand import Stand, slack_stand
from tests.system.worker import ended, worker

TYPES = frozenset({"app_mention", "message.im", "message_changed", "message_deleted"})
SUBSCRIBED = {"app_mention", "message.im", "message.channels"}
KEYS = {"SURELANE_ENCRYPTION_KEYS": new_key(), "SURELANE_ENCRYPT_EVENTS": "true"}


@dataclass
class Talk:
    """Ada's messages to the bot, and how Slack reports them to ingest."""

    slack: Stand
    ingest: Slack
    model: ModelServer
    connection: Connection

    @property
    def direct(self) -> Channel:
        workspace = self.slack.simulator.workspace
        return workspace.direct_messages(workspace.people()[0].id)

    @contextmanager
    def heard(self) -> Iterator[list[dict[str, Any]]]:
        """Collect what Slack reports of the changes in the block."""
        workspace, changes, found = self.slack.simulator.workspace, list[Change](), list[dict[str, Any]]()
        workspace.listeners.append(changes.append)
        yield found
        workspace.listeners.remove(changes.append)
        found += [
            envelope(workspace, inner)
            for change in changes
            for inner in events_of(workspace, change, SUBSCRIBED)
        ]

    async def report(self, envelopes: list[dict[str, Any]]) -> None:
        assert [(await self.ingest.event(each)).status for each in envelopes] == [200] * len(envelopes)

    async def say(self, text: str, channel: Channel | None = None, thread: str | None = None) -> Message:
        workspace, room = self.slack.simulator.workspace, channel or self.direct
        text = text if room.is_im else f"<@{workspace.bot.id}> {text}"
        with self.heard() as reported:
            message = workspace.post(room, workspace.people()[0].id, text, thread_ts=thread)
        await self.report(reported)
        return message

    async def edit(self, message: Message, text: str) -> None:
        with self.heard() as reported:
            self.slack.simulator.workspace.edit(message, text=text)
        await self.report(reported)

    async def delete(self, message: Message) -> None:
        with self.heard() as reported:
            self.slack.simulator.workspace.delete(message)
        await self.report(reported)

    async def asked(self, plan: str, times: int = 1) -> None:
        await until(lambda: len(self.model.asked[plan]) == times, what=f"{times} requests of {plan}")

    async def ends(self, ts: str, kind: str = "slack.message.im") -> list[tuple[str, str]]:
        """Return outcome and reason of each event about a message, once none is live."""
        about = "kind = $1 and event->'event'->>'ts' = $2"
        live = f"select id from agent.event where {about} or kind like 'slack.message\\_%'"
        while (found := await self.connection.fetchval(live, kind, ts)) is not None:
            await ended(self.connection, found)
        rows = await self.connection.fetch(
            f"select outcome, coalesce(reason, '') from agent.event_hist where {about} order by id", kind, ts
        )
        return [tuple(row) for row in rows]


@asynccontextmanager
async def talking(
    database: str, connection: Connection, ingests: dict[str, Any] | None = None, **more: str
) -> AsyncIterator[Talk]:
    async with (
        model_server() as model,
        slack_stand(connection) as slack,
        served(database, **{"event_types": TYPES, **(ingests or {})}) as ingest,
        worker(
            database,
            **settings(model, SLACK_API_URL=slack.api, SLACK_BOT_TOKEN="xoxb-any"),
            **{"SURELANE_HANDLERS": "surelane_worker.builtin:handlers", **more},
        ),
    ):
        yield Talk(slack, ingest.slack, model, connection)


def endless() -> tuple[Reply, asyncio.Event]:
    pause = asyncio.Event()
    return says("Old.", pause=pause), pause


async def test_an_edited_encrypted_message_is_answered_as_it_is_now_and_a_deleted_one_is_not(
    database: str, connection: Connection
) -> None:
    """Through ingest, queue and worker, with a model. What else holds is in unit/test_edits.py."""
    ingests = {name.removeprefix("SURELANE_").lower(): value for name, value in KEYS.items()}
    async with talking(database, connection, ingests, **KEYS) as talk:
        old, pause = endless()
        gone, second = endless()
        talk.model.plans = {"old": [old], "new": [says("New.")], "gone": [gone]}
        message = await talk.say("plan:old")
        await talk.asked("old")
        await talk.edit(message, "plan:new")
        ends, by = await talk.ends(message.ts), f"cancelled while running by {message.user}"
        pause.set()
        assert ends == [("cancelled", f"{by}: edited in Slack"), ("completed", "")]
        assert talk.slack.answers(message) == ["New."]
        message = await talk.say("plan:gone", talk.slack.room())
        await talk.asked("gone")
        await talk.delete(message)
        assert await talk.ends(message.ts, "slack.app_mention") == [("cancelled", f"{by}: deleted in Slack")]
        second.set()
        assert talk.slack.answers(message) == []
