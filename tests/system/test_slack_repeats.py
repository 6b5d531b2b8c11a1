"""A stream whose worker died does not stay open in Slack."""

import pytest

from surelane.calls import Connection
from tests.processes import until
from tests.system.slack_stand import slack_stand
from tests.system.worker import ended, worker


@pytest.mark.parametrize("begun", [False, True])
async def test_stream_of_an_event_that_ended_for_good_is_stopped_with_what_it_has(
    database: str, connection: Connection, *, begun: bool
) -> None:
    async with slack_stand(connection) as slack:
        given = {"SLACK_API_URL": slack.api, "SURELANE_SESSION_GRACE": "200ms", "SURELANE_MAX_ATTEMPTS": "1"}
        if not begun:
            slack.fail("slow", "chat.startStream", delay=600)
        async with worker(database, **given) as dying:
            identity, message = await slack.mention("stream die-in-the-middle" if begun else "stream")
            if not begun:  # Slack began it, and the worker does not know its timestamp yet
                await until(lambda: slack.answers(message), what="the stream")
                dying.child.kill()
            await dying.child.wait()

        def streaming() -> bool:
            return any(reply.streaming for reply in slack.replies(message))

        assert streaming()
        async with worker(database, **given, SURELANE_SWEEP_INTERVAL="1s"):
            assert (await ended(connection, identity))["attempts"] == 1
            await until(lambda: not streaming(), what="the end of the stream")
        assert slack.answers(message) == (["one two "] if begun else ["one "])
