"""Repeated attempts post no reply twice, and a slow Slack costs no lease."""

import signal
from collections.abc import AsyncIterator

import pytest

from surelane.calls import Connection
from surelane_dev.simulator.workspace.model import Message
from tests.processes import until
from tests.system.slack_stand import Stand, fault, slack_stand
from tests.system.test_leasing import LEASE
from tests.system.worker import ended, worker


@pytest.fixture
async def slack(connection: Connection) -> AsyncIterator[Stand]:
    async with slack_stand(connection) as stand:
        yield stand


async def die_and_try_again(database: str, slack: Stand, connection: Connection, text: str) -> list[str]:
    """Let the handler kill its worker and a second worker try again. Return the thread."""
    settings = {"SLACK_API_URL": slack.api, "SURELANE_LEASE": LEASE}
    async with worker(database, **settings) as first:
        identity, message = await slack.mention(text)
        await until(lambda: first.child.exit_code is not None, what="the first worker's death")
    async with worker(database, **settings):
        row = await ended(connection, identity)
    assert (row["outcome"], row["attempts"]) == ("completed", 2)
    assert not any(call["method"] == "conversations.replies" for call in slack.simulator.api.calls)
    return slack.answers(message)


async def test_worker_killed_after_its_reply_does_not_reply_again(
    database: str, slack: Stand, connection: Connection
) -> None:
    assert await die_and_try_again(database, slack, connection, "die-at-the-end") == ["first answer"]


async def test_worker_killed_between_replies_sends_only_the_missing_one(
    database: str, slack: Stand, connection: Connection
) -> None:
    thread = await die_and_try_again(database, slack, connection, "twice die-after-first")
    assert thread == ["first answer", "second answer"]


async def test_worker_that_stood_still_while_another_took_over_says_nothing_more(
    database: str, slack: Stand, connection: Connection
) -> None:
    settings = {"SLACK_API_URL": slack.api, "SURELANE_LEASE": LEASE}
    async with worker(database, **settings) as first:
        identity, message = await slack.mention("twice slowly")
        await until(lambda: slack.answers(message), what="the first answer")
        first.process.send_signal(signal.SIGSTOP)
        async with worker(database, **settings):
            row = await ended(connection, identity)
        first.process.send_signal(signal.SIGCONT)
        await until(lambda: any("lease lost" in line for line in first.output), what="the loss")
    assert row["attempts"] == 2
    assert slack.answers(message) == ["first answer", "second answer"]


async def test_stream_of_a_killed_worker_is_finished_in_place(
    database: str, slack: Stand, connection: Connection
) -> None:
    thread = await die_and_try_again(database, slack, connection, "stream die-in-the-middle")
    assert thread == ["one two three"]


async def test_long_stream_of_a_killed_worker_is_finished_in_its_messages(
    database: str, slack: Stand, connection: Connection
) -> None:
    thread = await die_and_try_again(database, slack, connection, "stream long die-in-the-middle")
    assert "".join(thread) == "one " + "two " * 7_000 + "three"


async def test_finished_stream_is_not_repeated(database: str, slack: Stand, connection: Connection) -> None:
    assert await die_and_try_again(database, slack, connection, "stream die-at-the-end") == ["one two three"]


async def die_while_beginning(database: str, slack: Stand, text: str, **settings: str) -> tuple[int, Message]:
    """Kill a worker, as by ``kill -9``, after Slack began its stream and before it knows the timestamp."""
    slack.simulator.faults.add(fault("slow", methods=["chat.startStream"], delay=600))
    async with worker(database, SLACK_API_URL=slack.api, SURELANE_LEASE=LEASE, **settings) as first:
        identity, message = await slack.mention(text)
        await until(lambda: slack.answers(message), what="the stream")
        first.process.kill()
        await until(lambda: first.child.exit_code is not None, what="the first worker's death")
    return identity, message


async def test_stream_of_a_worker_killed_while_it_began_is_found_and_finished(
    database: str, slack: Stand, connection: Connection
) -> None:
    identity, message = await die_while_beginning(database, slack, "stream")
    async with worker(database, SLACK_API_URL=slack.api, SURELANE_LEASE=LEASE):
        row = await ended(connection, identity)
    assert (row["outcome"], row["attempts"]) == ("completed", 2)
    assert slack.answers(message) == ["one two three"]
    assert not streaming(slack, message)


@pytest.mark.parametrize("begun", [False, True])
async def test_stream_of_an_event_that_ended_for_good_is_stopped_with_what_it_has(
    database: str, slack: Stand, connection: Connection, *, begun: bool
) -> None:
    settings = {"SLACK_API_URL": slack.api, "SURELANE_LEASE": LEASE, "SURELANE_MAX_ATTEMPTS": "1"}
    if begun:
        async with worker(database, **settings) as first:
            identity, message = await slack.mention("stream die-in-the-middle")
            await until(lambda: first.child.exit_code is not None, what="the first worker's death")
    else:
        identity, message = await die_while_beginning(database, slack, "stream", SURELANE_MAX_ATTEMPTS="1")
    assert streaming(slack, message)
    async with worker(database, **settings, SURELANE_SWEEP_INTERVAL="1s"):
        assert (await ended(connection, identity))["attempts"] == 1
        await until(lambda: not streaming(slack, message), what="the end of the stream")
    assert slack.answers(message) == (["one two "] if begun else ["one "])


def streaming(slack: Stand, message: Message) -> bool:
    """Return whether Slack shows that a reply of the message's thread still grows."""
    replies = slack.simulator.workspace.channels[message.channel].replies(message.ts)
    return any(reply.streaming for reply in replies)


async def test_rate_limit_longer_than_the_lease_is_waited_out(
    database: str, slack: Stand, connection: Connection
) -> None:
    slack.simulator.faults.add(fault("rate_limited", methods=["chat.postMessage"], retry_after=5))
    async with worker(database, SLACK_API_URL=slack.api, SURELANE_LEASE=LEASE):
        identity, message = await slack.mention("hello")
        row = await ended(connection, identity)
    assert (row["attempts"], slack.answers(message)) == (1, ["first answer"])
    assert (row["finished_at"] - row["enqueued_at"]).total_seconds() >= 5
