"""The model gets the earlier messages of a thread from history. Slack is asked for what history may lack."""

from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import pytest

from extensions.agents.tests.system import thread_handlers
from extensions.agents.tests.system.model_server import Reply, says
from extensions.agents.tests.system.test_edits import KEYS, TYPES, Talk, endless, talking
from surelane.calls import Connection
from surelane_agents.agent import REFUSED
from surelane_dev.simulator.workspace.model import Channel, Message
from tests.sql.migrations import connected
from tests.system.shared import shared_connection
from tests.system.slack_stand import fault
from tests.system.worker import ended

ALL = {"SURELANE_HANDLERS": f"{thread_handlers.__name__}:handlers"}


class Thread:
    """A thread in which the model answers, and what Slack was asked meanwhile."""

    def __init__(self, talk: Talk, root: Message | None = None, channel: Channel | None = None) -> None:
        self.talk, self.root, self.channel = talk, root, channel or talk.direct
        self.calls: deque[Any] = deque()
        talk.slack.simulator.api.calls = self.calls

    @property
    def reads(self) -> int:
        """The calls of Slack that read messages or ask who the bot is. Each look begins anew."""
        found = [each["method"] for each in self.calls]
        self.calls.clear()
        return sum(each in ("conversations.replies", "conversations.history", "auth.test") for each in found)

    async def say(self, text: str) -> Message:
        """Let Ada write something that needs no answer."""
        message = await self.talk.say(text, self.channel, self.root.ts if self.root else None)
        self.root = self.root or message
        await self.all_ended()
        return message

    def grace(self, text: str) -> Message:
        """Let Grace write into the thread."""
        assert self.root is not None
        workspace, grace = self.talk.slack.simulator.workspace, self.talk.slack.user("grace")
        return workspace.post(self.channel, grace.id, text, thread_ts=self.root.ts)

    async def ask(self, question: str, *answers: Reply) -> tuple[Message, list[str]]:
        """Let Ada ask, and return her message and the earlier messages that the model got."""
        plan = f"q{len(self.talk.model.plans)}"
        self.talk.model.plans[plan] = list(answers) or [says(f"Answer {question}.")]
        message = await self.say(f"plan:{plan} {question}")
        got = self.talk.model.asked[plan][0]["messages"][:-1]
        return message, [shown(each) for each in got if each["role"] != "system"]

    async def all_ended(self) -> None:
        connection = self.talk.connection
        while (live := await connection.fetchval("select min(id) from agent.event")) is not None:
            await ended(connection, live)

    def in_slack(self) -> list[str]:
        """Return the thread as Slack has it, without the last question and its answer."""
        assert self.root is not None
        found = [self.root, *self.talk.slack.replies(self.root)]
        return [f"bot: {each.text}" if each.by_app else f"<@{each.user}>: {each.text}" for each in found[:-2]]


def shown(message: dict[str, Any]) -> str:
    return f"bot: {message['content']}" if message["role"] == "assistant" else str(message["content"])


def texts(thread: list[str]) -> str:
    """Return all of a thread. Where a question is gone, the answers beside it are one message for the model."""
    return "\n\n".join(each.removeprefix("bot: ") for each in thread)


connection = shared_connection


@pytest.fixture(scope="module")
async def talk(shared_database: str, connection: Connection) -> AsyncIterator[Talk]:
    async with talking(shared_database, connection) as running:
        yield running


async def test_slack_is_asked_for_what_cannot_be_decrypted_alone(database: str) -> None:
    ingests = {name.removeprefix("SURELANE_").lower(): value for name, value in KEYS.items()}
    async with connected(database) as own, talking(database, own, ingests, **KEYS) as talk:
        thread = Thread(talk)
        for number in range(26):
            _, got = await thread.ask(f"{number}")
            assert got == thread.in_slack()
        assert (len(got), thread.reads) == (50, 0), "the model gets all of a long thread"
        thread = Thread(talk)
        await thread.ask("0")
        await thread.ask("1")
        # A result opens in its own place only.
        await own.execute(
            "update agent.event_hist set result = (select result from agent.event_hist order by id limit 1)"
        )
        _, got = await thread.ask("2")
        assert (got, thread.reads) == (thread.in_slack(), 1)
        # Nor does a payload that was changed.
        damage = 'update agent.event_hist set event = event || \'{"surelane.sealed": "lost"}\' where id = '
        await own.execute(f"{damage} (select max(id) from agent.event_hist)")
        message, got = await thread.ask("3")
        assert (got, thread.reads) == (thread.in_slack(), 1)
        talk.slack.simulator.faults.add(
            fault("refused", methods=["conversations.replies"], error="missing_scope")
        )
        await own.execute(f"{damage} (select max(id) from agent.event_hist)")
        _, got = await thread.ask("4")
        unread = f"<@{message.user}>: (cannot be decrypted: it is damaged, or was changed in the database)"
        there = thread.in_slack()
        assert got == [*there[:-2], unread, there[-1]]


async def test_a_thread_of_a_channel_whose_messages_the_app_takes_costs_no_call(database: str) -> None:
    types = {"event_types": TYPES | {"message.channels"}}
    async with connected(database) as own, talking(database, own, types, **ALL) as talk:
        thread = Thread(talk, channel=talk.slack.room())
        await thread.ask("0")
        for number in range(16):
            with talk.heard() as reported:
                thread.grace(f"Grace {number}")
            await talk.report(reported)
            _, got = await thread.ask(f"{number + 1}")
            assert got == thread.in_slack()
        assert len(got) == 2 + 3 * 15 + 1
        assert thread.reads == 0


async def test_where_the_app_takes_mentions_alone_slack_is_asked_from_the_last_turn_on(talk: Talk) -> None:
    thread = Thread(talk, channel=talk.slack.room())
    await thread.ask("0")
    early = thread.grace("Early.")
    _, got = await thread.ask("1")
    assert (got, thread.reads) == (thread.in_slack(), 1)
    before = thread.in_slack()
    talk.slack.simulator.workspace.delete(early)  # this app does not hear of it
    thread.grace("Late.")
    _, got = await thread.ask("2")
    assert (got, thread.reads) == ([*before, *thread.in_slack()[2:]], 1)


async def test_what_was_edited_or_deleted_is_as_people_left_it(talk: Talk) -> None:
    thread = Thread(talk)
    asked = [(await thread.ask(f"{number}"))[0] for number in range(3)]
    first, second = asked[0].text, asked[1].text
    await talk.edit(asked[0], "It was better so.")
    await talk.delete(asked[1])
    await talk.edit(asked[2], "A try.")
    await talk.edit(asked[2], "And a second one.")
    await thread.all_ended()
    for _ in range(2):  # from history, then from the turn before
        _, got = await thread.ask("3")
        assert texts(got) == texts(thread.in_slack())
    assert thread.reads == 0
    assert not [text for text in got if first in text or second in text or "A try" in text]


async def test_of_a_turn_that_was_cut_short_slack_knows_what_was_said(talk: Talk) -> None:
    thread = Thread(talk)
    old, pause = endless()
    talk.model.plans |= {"old": [old], "new": [says("New.")]}
    thread.root = await talk.say("plan:old")
    await talk.asked("old")
    await talk.edit(thread.root, "plan:new")
    await thread.all_ended()
    pause.set()
    _, got = await thread.ask("1")
    assert got == thread.in_slack()
    await thread.ask("2", Reply(status=401))
    thread.calls.clear()
    for reads in (1, 0):
        _, got = await thread.ask("3")
        assert (got, thread.reads) == (thread.in_slack(), reads)
    assert f"bot: {REFUSED}" in got


async def test_slack_is_asked_once_for_a_thread_that_a_message_of_no_turn_began(talk: Talk) -> None:
    workspace = talk.slack.simulator.workspace
    reminder = workspace.post(talk.direct, workspace.bot.id, "Stand-up in five minutes.", by_app=True)
    thread = Thread(talk, reminder)
    _, got = await thread.ask("0")
    assert (got, thread.reads) == (["bot: Stand-up in five minutes."], 1)
    _, got = await thread.ask("1")
    assert (got, thread.reads) == (thread.in_slack(), 0)
