"""The output of a command: events and tables that fit the terminal for people, JSON for scripts.

Where a terminal is too narrow, keys lose their middle, errors their beginning. A file gets everything.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.text import Text

from surelane_operator.api.endpoint import Table
from surelane_operator.cli.session import interruptible
from surelane_operator.reads.timeline import Step, story_of, trace_of

_COLOURS = {
    "completed": "green",
    "running": "cyan",
    "failed": "red",
    "step failed": "red",
    "died": "red",
    "expired": "yellow",
    "cancelled": "bright_black",
    "alive": "green",
    "lost": "yellow",
}
_WHOLE = 100_000
"""The width of what is no terminal."""
_INDENT = "  "
_NARROWEST = 6
"""The least width of a column that is cut."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_DAYS = timedelta(days=14)
"""Until then a time is said by its distance, beyond by its date."""


def show_json(value: object, indent: int | None = 2) -> None:
    print(json.dumps(value, default=_plain, ensure_ascii=False, indent=indent), flush=True)  # noqa: T201 - the output


def print_line(value: object) -> None:
    """Print a value as one line of JSON, at once."""
    show_json(value, indent=None)


def say(text: str, value: object, *, as_json: bool) -> None:
    """Print a sentence for people, or what it says as JSON."""
    if as_json:
        show_json(value)
    else:
        print(text)  # noqa: T201 - the command's output


def watched(show: Callable[[], None], *, watch: bool) -> None:
    """Print something once, or again every two seconds until Ctrl-C."""
    show()
    with interruptible():
        while watch:
            time.sleep(2)
            console().clear()
            show()


def console() -> Console:
    """Return the console: as wide as the terminal, and with its colours unless ``NO_COLOR`` is set."""
    found = Console(highlight=False, soft_wrap=False, emoji=False, markup=False)
    if not found.is_terminal and not os.environ.get("COLUMNS"):
        found.width = _WHOLE
    return found


def middle(text: str, width: int) -> str:
    """Cut a text to a width in its middle: keys and names differ at both ends."""
    if len(text) <= width:
        return text
    kept = max(width - 1, 0)
    return text[: (kept + 1) // 2] + "…"[:width] + text[len(text) - kept // 2 :]


def end(text: str, width: int) -> str:
    """Cut a text to its last characters: an error's cause is there."""
    return text if len(text) <= width else "…"[:width] + text[len(text) - max(width - 1, 0) :]


def show_table(table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table. On a terminal the note of a row stands below it, elsewhere beside it."""
    screen, note = console(), table.note
    if not rows:
        screen.print(table.empty)
        return
    pairs = [each.partition("=")[::2] for each in table.columns.split()]
    titles = {key.rstrip("*"): (title or key.rstrip("*")).replace("_", " ") for key, title in pairs}
    may_be_cut = {key.rstrip("*") for key, _ in pairs if key.endswith("*")}
    if note is not None and screen.width == _WHOLE:
        titles, note = titles | {note: note}, None
    texts = [[_said(row.get(key)) for key in titles] for row in rows]
    cut = [key in may_be_cut for key in titles]
    widths = _widths(cut, [list(titles.values()), *texts], screen.width)
    heading = (title.ljust(width + 2) for title, width in zip(titles.values(), widths, strict=True))
    screen.print(Text("".join(heading).rstrip(), "bold"), soft_wrap=True)
    for row, said in zip(rows, texts, strict=True):
        line = Text()
        for text, width in zip(said, widths, strict=True):
            line.append(middle(text, width).ljust(width + 2), colour_of(text))
        line.rstrip()
        screen.print(line, soft_wrap=True)
        if note is not None and row.get(note):
            screen.print(Text(_INDENT + end(_said(row[note]), screen.width - len(_INDENT)), "bright_black"))


def _widths(cut: Sequence[bool], lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the columns' widths. Those that may be cut lose what the screen has not, the widest first."""
    widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
    while sum(widths) + 2 * len(widths) - 2 > width:
        wide = [nth for nth, may in enumerate(cut) if may and widths[nth] > _NARROWEST]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def colour_of(word: str) -> str:
    """Return the style of a status, or of what happened; empty for others."""
    return _COLOURS.get(word, "")


def one_line(value: object) -> str:
    return " ".join(str(value).split())


def _said(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return ago(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(str(part) for part in value)
    return one_line(value)


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def ago(moment: datetime, now: datetime | None = None) -> str:
    """Say a time by its distance: ``3 min ago``, ``in 2 h``; beyond two weeks as a date with its zone."""
    if moment.year >= 9999:
        return "never"
    passed = (now or datetime.now(UTC)) - moment
    if abs(passed) > _DAYS:
        return f"{moment.astimezone():%Y-%m-%d %Z}"
    seconds = abs(passed).total_seconds()
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), (1, "s"))
    if seconds < 1:
        return "now"
    said = f"{seconds // size:.0f} {unit}"
    return f"{said} ago" if passed > timedelta(0) else f"in {said}"


def clock(moment: datetime) -> str:
    """Return the date and time in the terminal's zone, with the zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S %Z}"


def short_clock(moment: datetime) -> str:
    """Return a time of day in the terminal's zone, with milliseconds."""
    return f"{moment.astimezone():%H:%M:%S.%f}"[:-3]


_MOMENTS = {"runs": "run_at", "lease until": "lease_until", "deadline": "deadline", "ended": "finished_at"}
_TEXTS = {"key": "item_key", "group": "group_key", "dedupe key": "dedupe_key", "worker": "locked_by"}
_TEXTS |= {"waits for": "waits_for", "runs again": "rerun_of"}
_TEXTS |= {name: name for name in ("progress", "reason", "error")}
_WHAT = 11
_BY = 24
_UNDER = " " * 14
_LINES = 40
"""Lines of a payload or a result that a terminal shows."""
_NAME = 14
"""The width of the fields' names."""


class PrintedStory:
    """The story of one event on a terminal."""

    def __init__(self) -> None:
        self._screen = console()
        self._told: set[Step] = set()
        self._day: date | None = None

    def begin(self, event: dict[str, Any]) -> None:
        self._screen.print(f"event {event['id']}  {event['kind']}  {event['status']}")
        self._screen.print(f"trace {trace_of(event)}  enqueued {ago(event['enqueued_at'])}")

    def news(self, event: dict[str, Any]) -> list[Step]:
        """Return the steps that were not returned yet."""
        steps = [step for step in story_of(event) if step not in self._told]
        self._told.update(steps)
        return steps

    def tell(self, step: Step) -> None:
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
            yield Text(_UNDER + end(detail, self._screen.width - len(_UNDER)))


def show_sheet(event: dict[str, Any]) -> None:
    """Print an event. A terminal gets what fits it, a pipe or a file gets everything."""
    screen, story = console(), PrintedStory()
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
        if event[key] is not None:
            yield name, ago(event[key])
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
