"""What people think of agents' answers: counts by kind and model, and the latest ratings with their reasons."""

from surelane_operator.console.screen import Asked, Sources, Values
from surelane_operator.console.screens.events import moment_in
from surelane_operator.reads.feedback import Which, count_feedback, list_feedback
from surelane_service.feedback import BAD, GOOD

LATEST = 50


async def feedback(sources: Sources, asked: Asked) -> Values:
    """Read the counts and the latest ratings. The page is not live: each look at what people wrote is kept."""
    given = {name: value for name in ("workspace", "since", "rating") if (value := asked.word(name))}
    wrong, since = None, None
    try:
        since = moment_in(given.get("since"))
    except ValueError:
        wrong = "Write times as 2026-01-31 12:00."
    which = Which(given.get("workspace"), since, {"good": GOOD, "bad": BAD}.get(given.get("rating", "")))
    return {
        "given": given,
        "wrong": wrong,
        "counts": await count_feedback(sources.reads, which),
        "ratings": [each async for each in list_feedback(sources.reads, which, LATEST)],
    }
