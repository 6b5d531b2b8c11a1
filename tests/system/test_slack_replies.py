"""Replies to a simulated Slack are posted once, even if the event is handled again."""

import json
from collections.abc import AsyncIterator

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_dev.simulator.posting.payloads import command_form
from surelane_operator.changes import Changes
from surelane_operator.reads.timeline import story_of
from tests.processes import Service
from tests.system.slack_stand import Stand, fault, slack_stand
from tests.system.worker import ended, worker

pytestmark = pytest.mark.usefixtures("running")


@pytest.fixture(scope="module")
async def connection(shared_database: str) -> AsyncIterator[Connection]:
    connected = await asyncpg.connect(shared_database)
    yield connected
    await connected.close()


@pytest.fixture(scope="module")
async def shared_slack(connection: Connection) -> AsyncIterator[Stand]:
    async with slack_stand(connection) as stand:
        yield stand


@pytest.fixture
def slack(shared_slack: Stand) -> Stand:
    """Return the simulated Slack, without the calls of earlier tests."""
    shared_slack.simulator.api.calls.clear()
    return shared_slack


@pytest.fixture(scope="module")
async def running(shared_database: str, shared_slack: Stand) -> AsyncIterator[Service]:
    async with worker(shared_database, SLACK_API_URL=shared_slack.api) as started:
        yield started


async def test_reply_goes_into_the_thread(slack: Stand, connection: Connection) -> None:
    identity, message = await slack.mention("hello")
    row = await ended(connection, identity)
    assert slack.answers(message) == ["first answer"]
    (reply,) = slack.simulator.workspace.channels[message.channel].replies(message.ts)
    assert json.loads(row["result"]) == [reply.ts, None]
    assert reply.metadata == {
        "event_type": "surelane_reply",
        "event_payload": {"event_id": row["item_key"], "ordinal": 0},
    }


async def test_the_timeline_tells_of_each_reply(slack: Stand, connection: Connection) -> None:
    identity, message = await slack.mention("twice")
    await ended(connection, identity)
    replies = slack.simulator.workspace.channels[message.channel].replies(message.ts)
    job = await Changes(connection).get(identity)
    assert job is not None
    told = [step.detail for step in story_of(job) if step.what == "replied"]
    assert told == [f"message {reply.ts} in {message.channel}" for reply in replies]
    assert len(told) == 2


async def test_first_attempt_does_not_look_for_earlier_replies(slack: Stand, connection: Connection) -> None:
    identity, _ = await slack.mention("twice")
    await ended(connection, identity)
    assert [call["method"] for call in slack.simulator.api.calls] == ["chat.postMessage"] * 2


async def test_retries_do_not_look_for_earlier_replies_either(slack: Stand, connection: Connection) -> None:
    texts = ["twice fail-first", "twice fail-after-first"] * 10
    mentions = [await slack.mention(text) for text in texts]
    for identity, message in mentions:
        assert (await ended(connection, identity))["attempts"] == 2
        assert slack.answers(message) == ["first answer", "second answer"]
    assert [call["method"] for call in slack.simulator.api.calls] == ["chat.postMessage"] * 40


async def test_reply_whose_answer_was_lost_is_found(slack: Stand, connection: Connection) -> None:
    slack.simulator.faults.add(fault("answer_lost", methods=["chat.postMessage"]))
    identity, message = await slack.mention("hello")
    row = await ended(connection, identity)
    assert (row["attempts"], slack.answers(message)) == (1, ["first answer"])


async def test_server_errors_are_outlasted(slack: Stand, connection: Connection) -> None:
    slack.simulator.faults.add(fault("server_error", methods=["chat.postMessage"]))
    identity, message = await slack.mention("hello")
    row = await ended(connection, identity)
    assert (row["attempts"], slack.answers(message)) == (1, ["first answer"])


@pytest.mark.parametrize(
    ("channel", "reason"), [("lounge", "not_in_channel"), ("C0UNKNOWN1", "channel_not_found")]
)
async def test_error_that_no_attempt_can_mend_ends_the_event(
    slack: Stand, connection: Connection, channel: str, reason: str
) -> None:
    inner = {
        "type": "app_mention",
        "text": "hello",
        "ts": "1700000000.000100",
        "channel": _id(slack, channel),
    }
    envelope = {"type": "event_callback", "event_id": f"Ev{channel}", "event": inner}
    row = await ended(connection, await slack.queue.insert_event(json.dumps(envelope)))
    assert (row["outcome"], row["reason"], row["attempts"]) == ("failed", reason, 1)


async def test_refused_token_ends_the_event(slack: Stand, connection: Connection) -> None:
    slack.simulator.faults.add(fault("invalid_auth"))
    identity, _ = await slack.mention("hello")
    row = await ended(connection, identity)
    assert (row["outcome"], row["reason"], row["attempts"]) == ("failed", "invalid_auth", 1)


async def test_reactions_may_be_repeated(slack: Stand, connection: Connection) -> None:
    identity, message = await slack.mention("react status")
    assert (await ended(connection, identity))["outcome"] == "completed"
    assert list(message.reactions) == ["eyes"]


async def test_slash_command_is_answered_through_its_response_url(
    slack: Stand, connection: Connection
) -> None:
    workspace = slack.simulator.workspace
    ada, general = workspace.user("ada"), workspace.channel("general")
    assert ada is not None
    assert general is not None
    form = command_form(
        workspace, slack.simulator.interactions, command="/hello", text="", channel=general, user=ada
    )
    identity = await slack.queue.insert_event(json.dumps(dict(form)))
    assert (await ended(connection, identity))["outcome"] == "completed"
    assert [message.text for message in general.messages.values()][-1] == "hello yourself"


async def test_slash_command_is_answered_after_its_response_url_expired(
    slack: Stand, connection: Connection
) -> None:
    workspace = slack.simulator.workspace
    ada, general = workspace.user("ada"), workspace.channel("general")
    assert ada is not None
    assert general is not None
    form = dict(
        command_form(
            workspace, slack.simulator.interactions, command="/hello", text="", channel=general, user=ada
        )
    )
    slack.simulator.interactions.responses[form["response_url"].rpartition("/")[2]].until = 0
    before = len(general.messages)
    row = await ended(connection, await slack.queue.insert_event(json.dumps(form)))
    assert (row["outcome"], row["attempts"]) == ("completed", 1)
    assert [message.text for message in list(general.messages.values())[before:]] == ["hello yourself"]


def _id(slack: Stand, name: str) -> str:
    channel = slack.simulator.workspace.channel(name)
    return channel.id if channel else name
