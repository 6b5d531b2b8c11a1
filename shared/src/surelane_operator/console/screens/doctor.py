"""The doctor's findings, each with what to do. One examination serves all viewers."""

from surelane_operator.console.screen import Asked, Screen, Sources, Values

ORDER = ("problem", "warning", "unknown", "ok")


def doctor(sources: Sources) -> Screen:
    """Make the screen."""

    async def read(_: Asked) -> Values:
        examination = await sources.examination()
        findings = (
            sorted(examination.findings, key=lambda each: ORDER.index(each.level)) if examination else []
        )
        return {"examination": examination, "findings": findings}

    return Screen("doctor", "/doctor", "Doctor", read, every=10.0)
