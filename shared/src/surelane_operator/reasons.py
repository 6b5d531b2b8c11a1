"""Why an event waits, or how it ended: one sentence for the person on call."""

from collections.abc import Mapping
from typing import Any

SENTENCES = {
    "running": "A worker handles it now: {detail}.",
    "paused": "It waits because its kind is paused: {detail}. Resume the kind, and a worker claims it.",
    "waits_for_children": "It is a continuation, and waits for its children: {detail}.",
    "awaits_answer": "It waits for an answer from outside, {detail}.",
    "suspended": "Its handler is suspended: it {detail}.",
    "debounced": "It {detail}, so that quick messages are handled together.",
    "retrying": "An attempt failed: {detail}.",
    "future": "Its time has not come: it is {detail}.",
    "exhausted": "Its attempts are used up: {detail}.",
    "group_busy": "It waits behind another event of its thread: {detail}. One worker at a time handles a thread.",
    "group_waits": "It waits behind another event of its thread: {detail}.",
    "no_worker": "No worker takes it: {detail}. Start a worker that handles the kind.",
    "limited": "It waits for its kind's limit: {detail}.",
    "due": "Nothing holds it back: it is {detail}.",
}
"""What ``Operations.why`` answers, as a sentence for the person on call."""
REASONS = {
    "attempts_exhausted": "all its attempts were used",
    "too_old": "it waited for a worker for so long that an answer would have come too late",
    "deadline_passed": "its deadline passed",
}
"""The names that sweeps write as the reason of an end, in words."""


def sentence(reason: str, detail: str) -> str:
    """Say why a live event is not done."""
    return SENTENCES.get(reason, "{detail}.").format(detail=detail.rstrip("."))


def outcome(job: Mapping[str, Any]) -> str:
    """Say how an event ended, and why."""
    said = f": {in_words(job['reason'])}" if job["reason"] else ""
    match job["status"]:
        case "completed":
            return f"It completed on attempt {job['attempts']}." if job["attempts"] else "It completed."
        case "failed":
            last = job["errors"][-1] if job["errors"] else {}
            error = (
                f" {last.get('type')}: {last.get('message')}" if last.get("message", "") not in said else ""
            )
            return f"It failed after {_times(job['attempts'])}{said}.{error}"
        case "expired":
            return f"It expired after {_times(job['attempts'])}{said}."
        case _:
            return f"It was cancelled{said}."


def _times(attempts: int) -> str:
    return "no attempt" if not attempts else f"{attempts} attempt{'s' if attempts > 1 else ''}"


def in_words(reason: str | None) -> str:
    """Say why an event ended; some reasons are names that sweeps write."""
    return REASONS.get(reason or "", reason or "")
