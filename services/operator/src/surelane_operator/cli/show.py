"""Events on a terminal: a table, one event's story line by line, or all that is known of it."""

import json
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

from rich.text import Text

from surelane_operator.cli.output import (
    Column,
    ago,
    clock,
    colour_of,
    console,
    end,
    middle,
    moment_of,
    one_line,
    short_clock,
    show_json,
    show_table,
)
from surelane_operator.reads.timeline import Step, story_of, trace_of

_COLUMNS = (
    Column("id"),
    Column("kind", cut=middle),
    Column("status"),
    Column("attempts", "tries"),
    Column("run_at", "runs"),
    Column("took"),
    Column("key", cut=middle),
)
_MOMENTS = {"runs": "run_at", "lease until": "lease_until", "deadline": "deadline", "ended": "finished_at"}
_TEXTS = {"key": "item_key", "group": "group_key", "dedupe key": "dedupe_key", "worker": "locked_by"}
_TEXTS |= {"waits for": "waits_for", "runs again": "rerun_of"}
_TEXTS |= {name: name for name in ("progress", "reason", "error")}
_WHAT = 11
_BY = 24
_INDENT = " " * 14
_LINES = 40
"""Lines of a payload or a result that a terminal shows."""
_NAME = 14
"""The width of the fields' names."""


def show_events(found: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Print events as JSON, or as a table with the error or the reason of each."""
    if as_json:
        show_json(found)
        return
    rows = [event | {"key": key_of(event), "took": took_by(event), "why": why_of(event)} for event in found]
    show_table(_COLUMNS, rows, empty="no such events", note="why")


def key_of(event: dict[str, Any]) -> str:
    """Return the key under which people know an event: its own, or else its group's or its dedupe key."""
    return event["item_key"] or event["dedupe_key"] or event["group_key"] or ""


def took_by(event: dict[str, Any]) -> str:
    """Return how long the last attempt of an ended event took."""
    if event["finished_at"] is None or not event["attempts"] or event["run_at"] > event["finished_at"]:
        return ""
    return f"{(event['finished_at'] - event['run_at']).total_seconds():.2f} s"


def why_of(event: dict[str, Any]) -> str:
    """Return why an event ended as it did, or why it is tried again."""
    if event["status"] == "completed":
        return ""
    return one_line(": ".join(part for part in (event["reason"], event["error"]) if part))


class Story:
    """The story of one event on a terminal."""

    def __init__(self) -> None:
        self._screen = console()
        self._told: set[Step] = set()
        self._day: date | None = None

    def begin(self, event: dict[str, Any]) -> None:
        """Say which event it is."""
        self._screen.print(f"event {event['id']}  {event['kind']}  {event['status']}")
        self._screen.print(f"trace {trace_of(event)}  enqueued {ago(event['enqueued_at'])}")

    def news(self, event: dict[str, Any]) -> list[Step]:
        """Return the steps that were not returned yet."""
        steps = [step for step in story_of(event) if step not in self._told]
        self._told.update(steps)
        return steps

    def tell(self, step: Step) -> None:
        """Print a step."""
        for line in self._lines(step):
            self._screen.print(line)

    def _lines(self, step: Step) -> Iterator[Text]:
        moment = step.at.astimezone()
        if moment.date() != self._day:
            self._day = moment.date()
            yield Text(f"{clock(moment)[:10]} {moment:%Z}", "bold")
        by = middle(step.by or "", _BY)
        said = Text(f"{short_clock(moment)}  ", end="")
        said.append(step.what.ljust(_WHAT), colour_of(step.what))
        said.append(f"  {by}" if by else "")
        detail = one_line(step.detail or "")
        if detail and said.cell_len + 2 + len(detail) <= self._screen.width:
            yield said.append(f"  {detail}")
            return
        said.rstrip()
        yield said
        if detail:
            yield Text(_INDENT + end(detail, self._screen.width - len(_INDENT)))


def show_sheet(event: dict[str, Any]) -> None:
    """Print an event. A terminal gets what fits it, a pipe or a file gets everything."""
    screen, story = console(), Story()
    story.begin(event)
    for name, value in _fields(event):
        shown = end(value, screen.width - _NAME)
        screen.print(Text(name.ljust(_NAME), "bold").append(shown, "none"))
    for name in ("payload", "result"):
        if event[name] is not None:
            screen.print(Text(name, "bold"))
            for line in _document(event[name], screen.width, whole=not screen.is_terminal):
                screen.print(line)
    screen.print(Text("history", "bold"))
    for step in story.news(event):
        story.tell(step)


def _fields(event: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields that say something, with their values as text."""
    most = f" of {event['max_attempts']}" if event["max_attempts"] else ""
    yield "tries", f"{event['attempts']}{most}"
    for name, key in _MOMENTS.items():
        if moment := moment_of(event[key]):
            yield name, ago(moment)
    if event["priority"] != 1:
        yield "priority", str(event["priority"])
    for name, key in _TEXTS.items():
        if event[key] is not None:
            yield name, one_line(event[key])
    if event["tags"]:
        yield "tags", one_line(", ".join(f"{name}={value}" for name, value in event["tags"].items()))
    if event["rerun_as"]:
        yield "run again as", ", ".join(map(str, event["rerun_as"]))


def _document(value: object, width: int, *, whole: bool) -> Iterator[Text]:
    """Yield a JSON value as indented lines."""
    lines = json.dumps(value, ensure_ascii=False, indent=2).splitlines()
    shown = lines if whole else lines[:_LINES]
    for line in shown:
        cut = line if len(line) + 2 <= width else line[: width - 3] + "…"
        yield Text(f"  {cut}")
    if left := len(lines) - len(shown):
        yield Text(f"  … {left} more lines: --json shows them", "bright_black")
