"""A Slack event that comes in over HTTP is answered. The same scenario runs on Compose and on a cluster."""

from tests.scenario import answered_once, eventually, new_mention, outcomes, replies, send
from tests.system.whole import whole


async def test_a_mention_is_answered_in_its_thread_and_ends_in_history(database: str) -> None:
    async with whole(database) as running:
        await answered_once(running.system)


async def test_slacks_retry_of_an_event_is_answered_200_and_handled_once(database: str) -> None:
    async with whole(database) as running:
        mention = await new_mention(running.system)

        assert await send(running.system, mention) == 200
        assert await send(running.system, mention) == 200
        await eventually(
            lambda: outcomes(running.system, [mention]), {mention.event_id: "completed"}, within=60
        )
        assert await send(running.system, mention) == 200

        rows = await running.system.query("select count(*) from agent.job")
        assert rows == "1"
        assert len(await replies(running.system, mention)) == 1
