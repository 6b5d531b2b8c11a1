"""Show all that is known of one event, for people: its fields, payload, outcome and history."""

import json
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from surelane_operator.cli.output import console, end, one_line
from surelane_operator.cli.story import Story
from surelane_operator.cli.times import ago, moment_of

_LINES = 40
"""Lines of a payload or a result that a terminal shows."""
_NAME = 14
"""The width of the fields' names."""


def show_sheet(job: dict[str, Any]) -> None:
    """Print an event. A terminal gets what fits it, a pipe or a file gets everything."""
    screen, story = console(), Story()
    story.begin(job)
    for name, value in _fields(job):
        shown = end(value, screen.width - _NAME)
        screen.print(Text(name.ljust(_NAME), "bold").append(shown, "none"))
    for name in ("payload", "result"):
        if job[name] is not None:
            screen.print(Text(name, "bold"))
            for line in _document(job[name], screen.width, whole=not screen.is_terminal):
                screen.print(line)
    screen.print(Text("history", "bold"))
    story.tell(job)


def _fields(job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields that say something, with their values as text."""
    most = f" of {job['max_attempts']}" if job["max_attempts"] else ""
    yield "tries", f"{job['attempts']}{most}"
    for name, key in (
        ("runs", "run_at"),
        ("lease until", "lease_until"),
        ("deadline", "deadline"),
        ("ended", "finished_at"),
    ):
        if moment := moment_of(job[key]):
            yield name, ago(moment)
    if job["priority"] != 1:
        yield "priority", str(job["priority"])
    for name, key in (
        ("key", "item_key"),
        ("group", "group_key"),
        ("dedupe key", "dedupe_key"),
        ("worker", "locked_by"),
        ("waits for", "waits_for"),
        ("replay of", "replay_of"),
        ("reason", "reason"),
        ("error", "error"),
    ):
        if job[key] is not None:
            yield name, one_line(job[key])
    if job["replayed_as"]:
        yield "replayed as", ", ".join(map(str, job["replayed_as"]))


def _document(value: object, width: int, *, whole: bool) -> Iterator[Text]:
    """Yield a JSON value as indented lines."""
    lines = json.dumps(value, ensure_ascii=False, indent=2).splitlines()
    shown = lines if whole else lines[:_LINES]
    for line in shown:
        cut = line if len(line) + 2 <= width else line[: width - 3] + "…"
        yield Text(f"  {cut}")
    if left := len(lines) - len(shown):
        yield Text(f"  … {left} more lines: --json shows them", "bright_black")
