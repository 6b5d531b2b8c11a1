"""The workers: whether each is alive and how that is known, what it handles, what it runs now."""

from surelane_operator.console.screen import Asked, Missing, Screen, Sources, Values
from surelane_operator.panels.workers import ALL, KNOWN_BY, read_workers


def workers(sources: Sources) -> Screen:
    """Make the screen of all workers."""

    async def read(_: Asked) -> Values:
        found = await read_workers(sources.operations, sources.calls, each=3)
        return {"workers": found.workers, "known_by": KNOWN_BY}

    return Screen("workers", "/workers", "Workers", read)


def worker(sources: Sources) -> Screen:
    """Make the screen of one worker."""

    async def read(asked: Asked) -> Values:
        name = asked.path["name"]
        found = (await read_workers(sources.operations, sources.calls, name, ALL)).workers
        if not found:
            raise Missing(f"There is no worker {name}. One that ended is taken off the list.")
        return {"worker": found[0], "known_by": KNOWN_BY}

    return Screen("worker", "/workers/{name}", "Worker", read, listed=False, within="workers")
