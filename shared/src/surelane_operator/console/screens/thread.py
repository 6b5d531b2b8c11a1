"""Everything of one group, such as a Slack thread, in the order in which it happened."""

from surelane_operator.console.looks import group_jobs, parts_of
from surelane_operator.console.screen import Asked, Missing, Screen, Sources, Values

MOST = 200


def thread(sources: Sources) -> Screen:
    """Make the screen."""

    async def read(asked: Asked) -> Values:
        key = asked.word("key")
        if key is None:
            raise Missing("Open a thread from one of its events.")
        jobs = await group_jobs(sources.calls, key, MOST)
        workspace, channel, ts = parts_of(key)
        return {
            "key": key,
            "jobs": jobs,
            "channel": channel,
            "ts": ts,
            "message": sources.links.to_message(workspace, channel, ts),
            "most": MOST,
        }

    return Screen("thread", "/thread", "Thread", read, listed=False, within="events", every=3.0)
