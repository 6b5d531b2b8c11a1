"""The named schedules: when each fires next, and what became of its last run; run now, pause, resume, edit."""

from surelane_operator.console.screen import Asked, Missing, Screen, Sources, Values
from surelane_operator.panels.schedules import read_schedules


def schedules(sources: Sources) -> Screen:
    """Make the screen of all schedules."""

    async def read(_: Asked) -> Values:
        return {"schedules": (await read_schedules(sources.calls, sources.operations.sealing)).schedules}

    return Screen("schedules", "/schedules", "Schedules", read)


def schedule(sources: Sources) -> Screen:
    """Make the screen of one schedule."""

    async def read(asked: Asked) -> Values:
        name = asked.path["name"]
        for each in (await read_schedules(sources.calls, sources.operations.sealing)).schedules:
            if each.name == name:
                return {"schedule": each}
        raise Missing(f"There is no schedule {name}.")

    return Screen("schedule", "/schedules/{name}", "Schedule", read, listed=False, within="schedules")
