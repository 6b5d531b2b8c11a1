"""The model gets the earlier messages of a thread from history. Slack is asked for what history may lack."""

import json
from collections import deque
from typing import Any

import pytest

from surelane.calls import Connection
from surelane_dev.simulator.workspace.model import Message
from tests.system import thread_handlers
from tests.system.model_server import Reply, says
from tests.system.test_edits import KEYS, TYPES, Talk, talking
from tests.system.worker import ended

ALL = {"SURELANE_HANDLERS": f"{thread_handlers.__name__}:handlers"}


class Thread:
    """A thread in which the model answers, and what Slack was asked meanwhile."""

    def __init__(self, talk: Talk, connection: Connection, root: Message | None = None) -> None:
        self.talk, self.connection, self.root = talk, connection, root
        self.channel = talk.direct
        self.written = list[tuple[str, str]]()
        self.calls: deque[Any] = deque()
        talk.slack.simulator.api.calls = self.calls

    @property
    def reads(self) -> int:
        """The calls of Slack that read messages or ask who the bot is. Each look begins anew."""
        found = [each["method"] for each in self.calls]
        self.calls.clear()
        return sum(method in ("conversations.replies", "conversations.history", "auth.test") for method in found)

    async def say(self, text: str) -> Message:
        """Let Ada write something that needs no answer."""
        message = await self.talk.say(text, self.channel, self.root.ts if self.root else None)
        self.root = self.root or message
        await self.all_ended()
        return message

    async def ask(self, question: str, *answers: Reply) -> tuple[Message, list[str]]:
        """Let Ada ask, and return her message and the earlier messages that the model got."""
        plan = f"q{len(self.talk.model.plans)}"
        self.talk.model.plans[plan] = list(answers) or [says(f"Answer {question}.")]
        message = await self.say(f"plan:{plan} {question}")
        got = self.talk.model.asked[plan][0]["messages"][:-1]
        return message, [shown(each) for each in got if each["role"] != "system"]

    async def all_ended(self) -> None:
        while (live := await self.connection.fetchval("select min(id) from agent.event")) is not None:
            await ended(self.connection, live)

    def in_slack(self) -> list[str]:
        """Return the thread as Slack has it, without the last question and its answer."""
        assert self.root is not None
        found = [self.root, *self.talk.slack.simulator.workspace.channels[self.channel.id].replies(self.root.ts)]
        return [f"bot: {each.text}" if each.by_app else f"<@{each.user}>: {each.text}" for each in found[:-2]]


def shown(message: dict[str, Any]) -> str:
    return f"bot: {message['content']}" if message["role"] == "assistant" else str(message["content"])


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
async def test_a_direct_thread_of_50_messages_costs_no_call(
    database: str, connection: Connection, sealed: bool
) -> None:
    keys = KEYS if sealed else {}
    ingests = {name.removeprefix("SURELANE_").lower(): value for name, value in keys.items()}
    async with talking(database, connection, ingests, **keys) as talk:
        thread = Thread(talk, connection)
        for number in range(26):
            _, got = await thread.ask(f"{number}")
            assert got == thread.in_slack()
        assert len(got) == 50
        assert thread.reads == 0


async def test_a_thread_of_a_channel_whose_messages_the_app_takes_costs_no_call(
    database: str, connection: Connection
) -> None:
    types = {"event_types": TYPES | {"message.channels"}}
    async with talking(database, connection, types, **ALL) as talk:
        thread = Thread(talk, connection)
        thread.channel = talk.general
        await thread.ask("0")
        grace = talk.slack.simulator.workspace.user("grace")
        assert grace is not None
        assert thread.root is not None
        for number in range(16):
            with talk.heard() as reported:
                talk.slack.simulator.workspace.post(
                    talk.general, grace.id, f"Grace {number}", thread_ts=thread.root.ts
                )
            await talk.report(reported)
            _, got = await thread.ask(f"{number + 1}")
            assert got == thread.in_slack()
        assert len(got) == 2 + 3 * 15 + 1
        assert thread.reads == 0


async def test_where_the_app_takes_mentions_alone_slack_is_asked_from_the_last_turn_on(
    database: str, connection: Connection
) -> None:
    async with talking(database, connection) as talk:
        thread = Thread(talk, connection)
        thread.channel, workspace = talk.general, talk.slack.simulator.workspace
        grace = workspace.user("grace")
        assert grace is not None
        await thread.ask("0")
        assert thread.root is not None
        early = workspace.post(talk.general, grace.id, "Early.", thread_ts=thread.root.ts)
        _, got = await thread.ask("1")
        assert (got, thread.reads) == (thread.in_slack(), 1)
        expected = thread.in_slack()
        workspace.delete(early)  # nobody tells this app
        late = workspace.post(talk.general, grace.id, "Late.", thread_ts=thread.root.ts)
        second = thread.in_slack()
        _, got = await thread.ask("2")
        assert (got[: len(expected)], got[-1], thread.reads) == (expected, f"<@{grace.id}>: Late.", 1)
        assert got[len(expected) : -1] == second[-1:] + [f"bot: {talk.slack.answers(thread.root)[2]}"]
        assert late.text == "Late."
