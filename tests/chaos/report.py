"""Write the table in ``docs/reliability.md``."""

import os
import re
from dataclasses import astuple, dataclass, field, fields
from typing import Any

from tests.deploy.commands import ROOT

PAGE = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- made by tests/chaos, with SURELANE_RECORD=1 -->", "<!-- end of what tests/chaos made -->"


def heading(text: str) -> Any:
    return field(metadata={"heading": text})


@dataclass(frozen=True)
class Row:
    """The result of one scenario, and its headings in the table."""

    scenario: str = heading("what happens")
    sent: int = heading("events sent")
    answered_200: int = heading("answered 200")
    retried: int = heading("retried by Slack")
    rescued_after: float | str = heading("rescued events run again after, s")
    well_after: float = heading("well again after, s")
    lost: int = heading("lost")
    double_handled: int = heading("double handled")
    over_limit: int = heading("claims over the limit")
    duplicate_replies: int = heading("duplicate replies")
    handlers_stopped: int = heading("handlers stopped")
    stale_settles: int = heading("stale settles")


def table(rows: list[Row]) -> str:
    """Format the rows in Markdown."""
    names = [field.metadata["heading"] for field in fields(Row)]
    lines = [names, ["---", *["---:"] * (len(names) - 1)]]
    lines += [[str(cell) for cell in astuple(row)] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def record(rows: list[Row]) -> None:
    """Write the table if ``SURELANE_RECORD`` is set."""
    if not os.environ.get("SURELANE_RECORD"):
        return
    between = re.compile(f"{re.escape(BEGIN)}\n.*{re.escape(END)}", re.DOTALL)
    text, found = between.subn(f"{BEGIN}\n\n{table(rows)}\n\n{END}", PAGE.read_text())
    assert found == 1, f"{PAGE} has lost its marks"
    PAGE.write_text(text)
