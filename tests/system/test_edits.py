"""A person edits or deletes a message: its turn is begun anew or cancelled, through ingest, queue and worker."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from surelane.calls import Connection
from surelane.encryption.keys import new_key
from surelane_dev.simulator.posting.events import envelope, events_of
from surelane_dev.simulator.workspace.model import Change, Channel, Message
from tests.processes import until
from tests.system import edit_handlers
from tests.system.ingest_client import Slack, served
from tests.system.model_server import ModelServer, Reply, model_server, says, settings
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

    @property
    def general(self) -> Channel:
        found = self.slack.simulator.workspace.channel("general")
        assert found is not None
        return found

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


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
async def test_an_edited_message_is_answered_as_it_is_now(
    database: str, connection: Connection, sealed: bool
) -> None:
    keys = KEYS if sealed else {}
    ingests = {name.removeprefix("SURELANE_").lower(): value for name, value in keys.items()}
    async with talking(database, connection, ingests, **keys) as talk:
        old, pause = endless()
        talk.model.plans = {"old": [old], "new": [says("New.")]}
        message = await talk.say("plan:old")
        await talk.asked("old")
        await talk.edit(message, "plan:new")
        first, second = await talk.ends(message.ts)
        pause.set()
        ada = message.user
        assert first == ("cancelled", f"cancelled while running by {ada}: edited in Slack")
        assert second == ("completed", "")
        assert talk.slack.answers(message) == ["New."]
        await talk.edit(message, "plan:old")  # it is answered
        assert await talk.ends(message.ts) == [first, second]
        assert (len(talk.model.asked["old"]), len(talk.model.asked["new"])) == (1, 1)


async def test_a_deleted_message_is_not_answered(database: str, connection: Connection) -> None:
    async with talking(database, connection) as talk:
        old, pause = endless()
        talk.model.plans = {"old": [old]}
        message = await talk.say("plan:old", talk.general)
        await talk.asked("old")
        await talk.delete(message)
        (end,) = await talk.ends(message.ts, "slack.app_mention")
        pause.set()
        assert end == ("cancelled", f"cancelled while running by {message.user}: deleted in Slack")
        assert talk.slack.answers(message) == []


async def test_a_mention_that_waits_behind_another_one_is_edited_and_another_is_deleted(
    database: str, connection: Connection
) -> None:
    async with talking(database, connection) as talk:
        old, pause = endless()
        talk.model.plans = {"first": [old], "second": [says("Second.")], "new": [says("New.")]}
        first = await talk.say("plan:first", talk.general)
        await talk.asked("first")
        second = await talk.say("plan:second", talk.general, first.ts)
        third = await talk.say("plan:second", talk.general, first.ts)
        bot = talk.slack.simulator.workspace.bot.id
        await talk.edit(second, f"<@{bot}> plan:new")
        await talk.delete(third)
        (end,) = await talk.ends(third.ts, "slack.app_mention")
        assert end == ("cancelled", f"cancelled by {third.user}: deleted in Slack")
        pause.set()
        assert [end[0] for end in await talk.ends(second.ts, "slack.app_mention")] == [
            "cancelled",
            "completed",
        ]
        assert [end[0] for end in await talk.ends(first.ts, "slack.app_mention")] == ["completed"]
        assert not talk.model.asked["second"]
        assert talk.slack.answers(first)[-1] == "New."


async def test_of_two_edits_the_later_one_counts_in_either_order(
    database: str, connection: Connection
) -> None:
    async with talking(database, connection) as talk:
        old, pause = endless()
        kept, second = endless()
        talk.model.plans = {"old": [old], "earlier": [says("Earlier.")], "later": [kept]}
        message = await talk.say("plan:old")
        await talk.asked("old")
        with talk.heard() as earlier:
            talk.slack.simulator.workspace.edit(message, text="plan:earlier")
        with talk.heard() as later:
            talk.slack.simulator.workspace.edit(message, text="plan:later")
        await talk.report(later)
        await talk.asked("later")
        await talk.report(earlier)
        row = await ended(
            connection,
            await connection.fetchval("select id from agent.job where item_key = $1", earlier[0]["event_id"]),
        )
        assert row["outcome"] == "completed"
        pause.set()
        second.set()
        assert [end[0] for end in await talk.ends(message.ts)] == ["cancelled", "completed"]
        assert not talk.model.asked["earlier"]


async def test_edits_reach_a_teams_handlers_and_no_turn_is_cancelled(
    database: str, connection: Connection
) -> None:
    async with talking(database, connection, SURELANE_HANDLERS=f"{edit_handlers.__name__}:handlers") as talk:
        message = await talk.say("hello", talk.general)
        await ended(
            connection, await connection.fetchval("select id from agent.job where kind = 'slack.app_mention'")
        )
        await talk.edit(message, "a typo")
        await until(lambda: talk.slack.answers(message) == ["edited: a typo"], what="the reply to the edit")
        await talk.delete(message)  # it has a reply, so a tombstone stays
        said = ["edited: a typo", "deleted: a typo"]
        await until(lambda: talk.slack.answers(message) == said, what="the reply to the deletion")
        await talk.edit(message := await talk.say("hello", talk.general), "right")  # no route takes it
        assert await talk.ends(message.ts, "slack.app_mention") == [("completed", "")]
        fell_back = "select count(*) from agent.event_hist where result ? 'app_mention'"
        assert await connection.fetchval(fell_back) == 1


async def test_edits_are_ignored_where_the_setting_says_so(database: str, connection: Connection) -> None:
    async with talking(database, connection, SURELANE_MODEL_EDITED="ignore") as talk:
        old, pause = endless()
        talk.model.plans = {"old": [old]}
        message = await talk.say("plan:old")
        await talk.asked("old")
        with talk.heard() as reported:
            talk.slack.simulator.workspace.edit(message, text="plan:new")
        await talk.report(reported)
        edit = await connection.fetchval(
            "select id from agent.job where item_key = $1", reported[0]["event_id"]
        )
        assert (await ended(connection, edit))["outcome"] == "completed"
        pause.set()
        assert [end[0] for end in await talk.ends(message.ts)] == ["completed"]
        assert talk.slack.answers(message) == ["Old."]
