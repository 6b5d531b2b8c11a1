"""Check tables, charts and plans as Slack does."""

from collections.abc import Iterable, Mapping
from typing import Any

from surelane_dev.simulator.workspace.model import JSON

MOST_ROWS, MOST_COLUMNS = 100, 20
LONGEST_TABLE = 10_000
"""Characters of all cells of a message's tables."""
LONGEST_TITLE, LONGEST_LABEL = 50, 20
MOST_SERIES, MOST_CATEGORIES = 6, 20
STATUSES = frozenset({"pending", "in_progress", "complete", "error"})
CELLS = frozenset({"raw_text", "raw_number", "rich_text"})


class BadBlocksError(ValueError):
    """Slack would refuse the blocks. ``args`` are its reasons, one for each mistake."""


def check_data(block: JSON, at: str = "/blocks") -> None:
    """Check a block that shows data, at this place. Others pass. Raises BadBlocksError: Slack would refuse it."""
    check = {
        "table": _check_table,
        "data_visualization": _check_chart,
        "data_table": _check_data_table,
        "container": _check_container,
        "plan": _check_plan,
        "task_card": check_task,
    }.get(block["type"])
    try:
        if check is not None:
            check(block)
    except (AttributeError, KeyError, TypeError):
        raise BadBlocksError(f"a {block['type']} is malformed [json-pointer:{at}]") from None
    except BadBlocksError as error:
        raise BadBlocksError(f"{error} [json-pointer:{at}]") from None


def tables(blocks: Iterable[JSON]) -> int:
    """Return how many tables there are. A message may have one."""
    return sum(block["type"] == "table" for block in blocks)


def check_task(task: Mapping[str, Any]) -> None:
    """Check a task card or a ``task_update``, whose fields have the same rules."""
    _text(task.get("title"), 256)
    sources = task.get("sources", [])
    _need(task.get("status", "pending") in STATUSES, "a task's status")
    _need(all(isinstance(each[name], str) for each in sources for name in ("url", "text")), "a source")


def _check_table(block: JSON) -> None:
    rows, columns = block["rows"], block.get("column_settings", [])
    _need(1 <= len(rows) <= MOST_ROWS, "a table's rows")
    _need(all(1 <= len(row) <= MOST_COLUMNS for row in rows), "a row's cells")
    _need(len(columns) <= MOST_COLUMNS, "column_settings")
    _need(all((each or {}).get("align", "left") in ("left", "center", "right") for each in columns), "align")
    _check_cells(rows)


def _check_cells(rows: list[list[JSON]]) -> None:
    cells = [cell for row in rows for cell in row]
    _need(all(cell["type"] in CELLS and _words(cell) for cell in cells), "a cell")
    _need(sum(len(_words(cell)) for cell in cells) <= LONGEST_TABLE, "a table's length")


def _check_chart(block: JSON) -> None:
    _text(block["title"], LONGEST_TITLE)
    chart = block["chart"]
    if chart["type"] == "pie":
        _need(1 <= len(chart["segments"]) <= MOST_SERIES, "segments")
        for each in chart["segments"]:
            _text(each["label"], LONGEST_LABEL)
            _need(each["value"] > 0, "a segment's value")
        return
    _need(chart["type"] in ("bar", "line", "area"), "a chart's type")
    categories, series = chart["axis_config"]["categories"], chart["series"]
    _need(1 <= len(series) <= MOST_SERIES and 1 <= len(categories) <= MOST_CATEGORIES, "series or categories")
    _need(len({each["name"] for each in series}) == len(series), "unique names of series")
    for each in series:
        _text(each["name"], LONGEST_LABEL)
        _need([point["label"] for point in each["data"]] == categories, "one point for each category")
        _need(all(isinstance(point["value"], int | float) for point in each["data"]), "a value")
    for category in categories:
        _text(category, LONGEST_LABEL)


def _check_data_table(block: JSON) -> None:
    header, *rows = block["rows"]
    _need(all(len(row) == len(header) for row in rows), "rows of one length")
    _need(all(cell["type"] != "rich_text" for cell in header), "a cell of the header")
    _check_cells(block["rows"])


def _check_container(block: JSON) -> None:
    for child in block["child_blocks"]:
        check_data(child, "child_blocks")
    _need(not (block.get("is_collapsible") and block.get("has_header_divider")), "has_header_divider")
    _need(not (block.get("default_collapsed") and not block.get("is_collapsible")), "default_collapsed")


def _check_plan(block: JSON) -> None:
    _text(block["title"], 256)
    for task in block.get("tasks", []):
        _need(task["type"] == "task_card" and isinstance(task["task_id"], str), "a plan's task")
        check_task(task)


def _words(part: JSON) -> str:
    """Return a cell's text."""
    return str(part.get("text") or "".join(_words(each) for each in part.get("elements", [])))


def _text(value: object, longest: int) -> None:
    _need(isinstance(value, str) and 0 < len(value) <= longest, f"a text of 1 to {longest} characters")


def _need(right: bool, what: str) -> None:
    if not right:
        raise BadBlocksError(f"wrong: {what}")
