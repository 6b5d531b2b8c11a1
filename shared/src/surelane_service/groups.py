"""Groups that wait behind a head which is not claimed, although one of their members could be."""

from surelane.calls import Calls


async def free_groups(calls: Calls) -> None:
    """Give every such group another head.

    Each call is a step of up to 1,000 groups and a transaction of its own, so that no lock is held for long.
    """
    after: str | None = ""
    while after is not None:
        after = await calls.fetchval("select next from agent.free_groups($1)", after)
