"""Repeated attempts post no reply twice, and a slow Slack costs no lease."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import pytest

from surelane.calls import Connection
from surelane_dev.simulator.workspace.model import Message
from tests.processes import Service, until
from tests.system.slack_stand import Stand, slack_stand
from tests.system.worker import ended, worker


@dataclass(frozen=True)
class System:
    """A simulated Slack, and how its workers run."""

    slack: Stand
    connection: Connection
    database: str

    def worker(self, **settings: str) -> AbstractAsyncContextManager[Service]:
        quick = {"SLACK_API_URL": self.slack.api, "SURELANE_SESSION_GRACE": "200ms"}
        return worker(self.database, **quick, **settings)

    async def dies(self, text: str, **settings: str) -> tuple[int, Message]:
        """Let the handler kill its worker."""
        async with self.worker(**settings) as first:
            identity, message = await self.slack.mention(text)
            await first.child.wait()
        return identity, message

    async def dies_while_beginning(self, **settings: str) -> tuple[int, Message]:
        """Kill a worker, as by ``kill -9``, after Slack began its stream and before it knows the timestamp."""
        self.slack.fail("slow", "chat.startStream", delay=600)
        async with self.worker(**settings) as first:
            identity, message = await self.slack.mention("stream")
            await until(lambda: self.slack.answers(message), what="the stream")
            first.child.kill()
            await first.child.wait()
        return identity, message

    def streaming(self, message: Message) -> bool:
        """Return whether Slack shows that a reply of the message's thread still grows."""
        return any(reply.streaming for reply in self.slack.replies(message))


@pytest.fixture
async def system(database: str, connection: Connection) -> AsyncIterator[System]:
    async with slack_stand(connection) as slack:
        yield System(slack, connection, database)


@pytest.mark.parametrize("begun", [False, True])
async def test_stream_of_an_event_that_ended_for_good_is_stopped_with_what_it_has(
    system: System, *, begun: bool
) -> None:
    last = {"SURELANE_MAX_ATTEMPTS": "1"}
    if begun:
        identity, message = await system.dies("stream die-in-the-middle", **last)
    else:
        identity, message = await system.dies_while_beginning(**last)
    assert system.streaming(message)
    async with system.worker(**last, SURELANE_SWEEP_INTERVAL="1s"):
        assert (await ended(system.connection, identity))["attempts"] == 1
        await until(lambda: not system.streaming(message), what="the end of the stream")
    assert system.slack.answers(message) == (["one two "] if begun else ["one "])
