"""In a channel that organizations share, one message is one event, and one thread one group, for all reporters."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from surelane.calls import Connection
from surelane_dev.simulator.posting.events import envelope, events_of
from surelane_dev.simulator.workspace.demo import SHARED
from surelane_dev.simulator.workspace.model import Message, Posted
from tests.system.ingest_client import Slack, served
from tests.system.test_installed_tokens import BAKERY, EAST, Stand, stand, worker
from tests.system.worker import ended

BOTH = (EAST, BAKERY)


@dataclass
class Shared:
    """Two workspaces with the app and a channel that they share; ingest takes what both report."""

    slack: Stand
    ingest: Slack
    connection: Connection

    def write(self, team: str, text: str, thread: str | None = None) -> Message:
        """Let a person of a workspace mention both bots."""
        workspace = self.slack.simulator.installs.workspaces[team]
        bots = " ".join(f"<@{self.slack.simulator.installs.workspaces[each].bot.id}>" for each in BOTH)
        person = next(user for user in workspace.users.values() if not user.is_bot)
        return workspace.post(workspace.channels[SHARED], person.id, f"{bots} {text}", thread_ts=thread)

    def reported(self, team: str, message: Message, kind: str = "app_mention") -> dict[str, Any]:
        """Return the envelope with which Slack reports a message to the app of a workspace."""
        workspace = self.slack.simulator.installs.workspaces[team]
        (inner,) = events_of(workspace, Posted(message), {kind})
        return envelope(workspace, inner)

    async def report(self, team: str, message: Message, kind: str = "app_mention") -> None:
        """Let Slack report a message to ingest."""
        assert (await self.ingest.event(self.reported(team, message, kind))).status == 200

    async def events(self) -> list[tuple[int, str, str]]:
        """Return id, key and group of each event, live or ended, in the order of the ids."""
        rows = await self.connection.fetch(
            "select id, item_key, group_key from agent.event union all"
            " select id, item_key, group_key from agent.event_hist order by id"
        )
        return [tuple(row) for row in rows]

    def answers(self, message: Message) -> list[tuple[str | None, str]]:
        channel = self.slack.simulator.installs.workspaces[EAST].channels[SHARED]
        return [(each.team, each.text.split()[-1]) for each in channel.replies(message.ts) if each.by_app]


@pytest.fixture
async def shared(database: str, connection: Connection) -> AsyncIterator[Shared]:
    async with stand(connection) as slack, served(database) as ingest:
        for team in BOTH:
            await slack.install(team)
        yield Shared(slack, ingest.slack, connection)


@pytest.mark.parametrize("order", [BOTH, BOTH[::-1], None], ids=["east first", "bakery first", "at once"])
async def test_a_message_that_two_workspaces_report_is_answered_once(
    database: str, connection: Connection, shared: Shared, order: tuple[str, str] | None
) -> None:
    message = shared.write(BAKERY, "bread")
    if order is None:
        await asyncio.gather(*(shared.report(team, message) for team in BOTH))
    else:
        for team in order:
            await shared.report(team, message)
    ((event, key, group),) = await shared.events()
    assert (key, group) == (f"mention:{SHARED}:{message.ts}", f"{SHARED}:{message.ts}")
    async with worker(database, shared.slack):
        row = await ended(connection, event)
    assert row["outcome"] == "completed", row["errors"]
    named = json.loads(row["event"])["authorizations"][0]["team_id"]
    if order is not None:
        assert named == order[0]
    assert shared.answers(message) == [(named, "bread")]  # with the token of the workspace that is named
    for team in BOTH:  # Slack's retry, after the end
        await shared.report(team, message)
    assert len(await shared.events()) == 1
