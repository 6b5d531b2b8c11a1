"""A Slack event that comes in over HTTP is answered. The same scenario runs on Compose and on a cluster."""

from tests.scenario import answered_once, eventually, new_mention, outcomes, replies, send
from tests.system.whole import whole


async def test_a_mention_is_answered_in_its_thread_and_slacks_retries_are_answered_200_and_handled_once(
    database: str,
) -> None:
    async with whole(database) as running:
        await answered_once(running.system)
        mention = await new_mention(running.system)
        assert [await send(running.system, mention) for _ in range(2)] == [200, 200]
        completed = {mention.event_id: "completed"}
        await eventually(lambda: outcomes(running.system, [mention]), completed, within=60)
        assert await send(running.system, mention) == 200
        assert await running.system.query("select count(*) from agent.job") == "2"
        assert len(await replies(running.system, mention)) == 1
