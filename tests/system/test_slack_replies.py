"""Replies to a simulated Slack are posted once, even if the event is handled again."""

import json
from collections.abc import AsyncIterator

import pytest

from surelane.calls import Connection
from surelane_operator.changes import Changes
from surelane_operator.reads.timeline import story_of
from tests.processes import Service
from tests.system.shared import shared_connection, shared_slack
from tests.system.slack_stand import Stand
from tests.system.worker import ended, worker

pytestmark = pytest.mark.usefixtures("running")
connection, slack = shared_connection, shared_slack


@pytest.fixture(scope="module")
async def running(shared_database: str, slack: Stand) -> AsyncIterator[Service]:
    async with worker(shared_database, SLACK_API_URL=slack.api) as started:
        yield started


async def test_reply_goes_into_the_thread_and_the_timeline(slack: Stand, connection: Connection) -> None:
    identity, message = await slack.mention("twice")
    row = await ended(connection, identity)
    assert slack.answers(message) == ["first answer", "second answer"]
    first, second = slack.replies(message)
    assert json.loads(row["result"]) == [first.ts, second.ts]
    assert first.metadata == {
        "event_type": "surelane_reply",
        "event_payload": {"event_id": row["item_key"], "ordinal": 0},
    }
    job = await Changes(connection).get(identity)
    assert job is not None
    told = [step.detail for step in story_of(job) if step.what == "replied"]
    assert told == [f"message {reply.ts} in {message.channel}" for reply in (first, second)]


@pytest.mark.parametrize("kind", ["answer_lost", "server_error"])
async def test_call_that_slack_did_not_answer_costs_no_attempt(
    slack: Stand, connection: Connection, kind: str
) -> None:
    slack.fail(kind, "chat.postMessage")
    identity, message = await slack.mention("hello")
    row = await ended(connection, identity)
    assert (row["attempts"], slack.answers(message)) == (1, ["first answer"])


@pytest.mark.parametrize("reason", ["not_in_channel", "channel_not_found", "invalid_auth"])
async def test_error_that_no_attempt_can_mend_ends_the_event(
    slack: Stand, connection: Connection, reason: str
) -> None:
    channel = "C0UNKNOWN1" if reason == "channel_not_found" else slack.room("lounge").id
    if reason == "invalid_auth":
        slack.fail(reason)
    inner = {"type": "app_mention", "text": "hello", "ts": "1700000000.000100", "channel": channel}
    identity = await slack.store({"type": "event_callback", "event_id": f"Ev{reason}", "event": inner})
    row = await ended(connection, identity)
    assert (row["outcome"], row["reason"], row["attempts"]) == ("failed", reason, 1)


async def test_reactions_may_be_repeated(slack: Stand, connection: Connection) -> None:
    identity, message = await slack.mention("react status")
    assert (await ended(connection, identity))["outcome"] == "completed"
    assert list(message.reactions) == ["eyes"]
