"""The output of a command: tables that fit the terminal for people, JSON for scripts.

A table wraps nothing. Where the terminal is too narrow, keys lose their middle and errors their beginning, because the
cause is at the end. Into a pipe or a file everything is written whole.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment, Segments
from rich.style import Style
from rich.table import Table
from rich.text import Text

from surelane_operator.cli.session import interruptible

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
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_DAYS = timedelta(days=14)
"""Until then a time is said by its distance, beyond by its date."""
Cut = Callable[[str, int], str]


def show_json(value: object) -> None:
    """Print one JSON document."""
    print(json.dumps(value, default=_plain, ensure_ascii=False, indent=2))  # noqa: T201 - the command's output


def print_line(value: object) -> None:
    """Print a value as one line of JSON, at once."""
    print(json.dumps(value, default=_plain, ensure_ascii=False), flush=True)  # noqa: T201 - the command's output


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


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Its ``title`` is by default the key. Without ``cut`` no value is cut."""

    key: str
    title: str | None = None
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class _Cell:
    """A value that is cut to the width of its column."""

    text: str
    cut: Cut
    style: str

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(6, len(self.text), options.max_width), min(len(self.text), options.max_width))

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.cut(self.text, options.max_width), self.style, no_wrap=True, end="")


def show_table(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], *, empty: str, note: str | None = None
) -> None:
    """Print a table, or the text ``empty`` when there are no rows.

    ``note`` is the key of a text that follows each row. On a terminal it has a line of its own.
    """
    screen = console()
    if not rows:
        screen.print(empty)
        return
    if note is not None and screen.width == _WHOLE:
        columns, note = [*columns, Column(note)], None
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        title = column.key.replace("_", " ") if column.title is None else column.title
        table.add_column(title, no_wrap=column.cut is None)
    for row in rows:
        table.add_row(*(_cell(row.get(column.key), column) for column in columns))
    heading, *lines = _trimmed(screen.render_lines(table, pad=False))
    screen.print(Segments(heading))
    for row, line in zip(rows, lines, strict=True):
        screen.print(Segments(line))
        if note is not None and row.get(note):
            screen.print(Text(_INDENT + end(_said(row[note]), screen.width - len(_INDENT)), "bright_black"))


def colour_of(word: str) -> str:
    """Return the style of a status, or of what happened; empty for others."""
    return _COLOURS.get(word, "")


def one_line(value: object) -> str:
    """Return a value as text without line breaks."""
    return " ".join(str(value).split())


def _trimmed(lines: list[list[Segment]]) -> Iterator[list[Segment]]:
    """Yield lines without the spaces at their ends, and with line breaks."""
    for line in lines:
        kept = list(line)
        while kept and not kept[-1].text.strip():
            kept.pop()
        if kept:
            kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style or Style())
        yield [*kept, Segment.line()]


def _cell(value: object, column: Column) -> Text | _Cell:
    text = _said(value)
    return Text(text, colour_of(text)) if column.cut is None else _Cell(text, column.cut, colour_of(text))


def _said(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if (moment := moment_of(value)) is not None:
        return ago(moment)
    if isinstance(value, (list, tuple)):
        return ", ".join(str(part) for part in value)
    return one_line(value)


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def moment_of(value: object) -> datetime | None:
    """Return a value that is a time; ``None`` for others."""
    return value if isinstance(value, datetime) else None


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
