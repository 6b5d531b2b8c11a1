"""The output of a command: tables for people, JSON for scripts."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_COLOURS = {
    "completed": "green",
    "running": "cyan",
    "failed": "red",
    "expired": "yellow",
    "cancelled": "bright_black",
}


def show_json(value: object) -> None:
    """Print one JSON document."""
    print(json.dumps(value, default=_plain, ensure_ascii=False, indent=2))  # noqa: T201 - the command's output


def show_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, empty: str) -> None:
    """Print a table of some columns, or the text ``empty`` when there are no rows."""
    console = Console()
    if not rows:
        console.print(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    console.print(table)


def _cell(value: object) -> Text:
    if value is None:
        return Text("")
    if isinstance(value, datetime):
        return Text("never" if value.year >= 9999 else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}")
    if isinstance(value, (list, tuple)):
        return Text(", ".join(str(part) for part in value))
    text = str(value)
    return Text(text if len(text) <= 120 else text[:117] + "...", style=_COLOURS.get(text, ""))


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
