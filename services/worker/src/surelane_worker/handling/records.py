"""Write results and errors as JSON that PostgreSQL can hold."""

import json
import sys
import traceback
from datetime import UTC, datetime
from types import FrameType, TracebackType
from typing import Any

from surelane.events import Event
from surelane.json_text import mended

LONGEST_MESSAGE = 2000
LONGEST_RESULT = 1_000_000
LONGEST_TRACEBACK = 4000
"""Characters. The end is kept: it names what was raised, and where."""
_OURS = {"surelane", "surelane_dev", "surelane_service", "surelane_worker"}
_NOT_THEIRS = _OURS | {"slack_bolt"} | sys.stdlib_module_names
"""Top-level names of modules between a team's functions, and below them."""


class OutcomeError(Exception):
    """The handler returned an outcome that cannot be recorded, so its attempt failed."""


class ResultError(OutcomeError):
    """The handler returned a result that cannot be kept."""


def result_text(result: object) -> str | None:
    """Return a handler's result as JSON text. Refuse what JSON cannot hold, and more than a million characters."""
    if result is None:
        return None
    try:
        text = mended(json.dumps(result, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultError(f"the result is not JSON: {error}") from None
    if len(text) > LONGEST_RESULT:
        raise ResultError(f"the result has {len(text):,} characters; at most {LONGEST_RESULT:,} can be kept")
    return text


def failure_record(raised: object, attempt: int, reason: str | None = None) -> dict[str, Any]:
    """Return what failed, when, in which attempt and where: an exception, or an outcome with its ``reason``."""
    record: dict[str, Any] = {
        "type": type(raised).__name__,
        "message": plain(message_of(raised)) if reason is None else reason,
        "at": datetime.now(UTC).isoformat(),
        "attempt": attempt,
    }
    if isinstance(raised, BaseException) and (place := line_in(raised.__traceback__)):
        record["where"] = place
    return record


def error_record(
    event: Event, worker: str, raised: object, reason: str | None = None, traceparent: str | None = None
) -> dict[str, Any]:
    """Return the record of a failed attempt: as :func:`failure_record`, with the worker, and first with a traceback.

    ``traceparent``: the span of the attempt, for a link from the next one.
    """
    record = failure_record(raised, event.attempts, reason) | {"worker": worker}
    # An event may have a thousand attempts, and its row has all their errors.
    if isinstance(raised, BaseException) and event.attempts <= 3:
        record["traceback"] = "".join(traceback.format_exception(raised))[-LONGEST_TRACEBACK:]
    if traceparent is not None:
        record["traceparent"] = traceparent
    return record


def message_of(error: object) -> str:
    """Return the text of an exception or of a handler's reason, or the class's name where it has no text."""
    try:
        return str(error)[:LONGEST_MESSAGE]
    except Exception:  # noqa: BLE001 - __str__ is the handler's code
        return f"({type(error).__name__} without text)"


def line_in(found: TracebackType | None) -> str | None:
    """Return the last file and line of a team's own code in a traceback; ``None``: it has none.

    Their code is the package of the first frame that is neither ours nor Python's.
    """
    frames = [
        (str(frame.f_globals.get("__name__")).partition(".")[0], f"{frame.f_code.co_filename}:{line}")
        for frame, line in traceback.walk_tb(found)
    ]
    theirs = next((name for name, _ in frames if name not in _NOT_THEIRS), None)
    own = [place for name, place in frames if theirs in (None, name)]
    return own[-1] if own else None


def traceback_of(thread: int | None, outermost: FrameType | None = None) -> TracebackType | None:
    """Return where a thread is now, from its frame ``outermost`` or its start on; ``None``: it has ended."""
    made, frame = None, sys._current_frames().get(thread or 0)  # noqa: SLF001 - documented
    for each, line in traceback.walk_stack(frame) if frame is not None else ():
        made = TracebackType(made, each, each.f_lasti, line or 0)  # a line may be unknown
        if each is outermost:
            break
    return made


def plain(text: str) -> str:
    """Replace NUL and lone surrogates, which PostgreSQL refuses, by the replacement character."""
    return text.replace("\x00", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
