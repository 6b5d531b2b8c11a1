"""Everything of one group, such as a Slack thread, in the order in which it happened."""

from surelane_operator.console.looks import group_jobs
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


def parts_of(key: str) -> tuple[str | None, str | None, str | None]:
    """Split the group key of a Slack event into workspace, channel and the ts of the thread."""
    match key.split(":"):
        case [workspace, channel, ts]:
            return workspace, channel, ts
        case [channel, ts] if "." in ts:  # of a channel that organizations share
            return None, channel, ts
        case [workspace, channel]:
            return workspace, channel, None
        case _:
            return None, None, None
