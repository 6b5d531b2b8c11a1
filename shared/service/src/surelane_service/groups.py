"""Free groups whose head is not claimed although one of their other members could be."""

from surelane.calls import Calls


async def free_groups(calls: Calls) -> None:
    """Give every such group another head.

    Each call takes up to 1,000 groups in its own transaction, so that it holds no lock for long.
    """
    after: str | None = ""
    while after is not None:
        after = await calls.fetchval("select next from agent.free_groups($1)", after)
