"""The overview: how much waits, how fast it goes, what failed, and what is wrong."""

from surelane_operator.console.screen import Asked, Screen, Sources, Values


def overview(sources: Sources) -> Screen:
    """Make the screen."""

    async def read(_: Asked) -> Values:
        return {
            "kinds": await sources.operations.stats(),
            "workers": await sources.operations.workers(),
        }

    return Screen("overview", "/", "Overview", read, every=2.0)
