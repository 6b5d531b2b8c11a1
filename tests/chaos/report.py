"""Write the table in ``docs/reliability.md``."""

import os
import re
from dataclasses import astuple, dataclass, fields

from tests.deploy.commands import ROOT

PAGE = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- made by tests/chaos, with SURELANE_RECORD=1 -->", "<!-- end of what tests/chaos made -->"


@dataclass(frozen=True)
class Row:
    """The result of one scenario."""

    scenario: str
    sent: int
    answered_200: int
    retried: int
    rescued_after: float | str
    well_after: float
    lost: int
    double_handled: int
    over_limit: int
    duplicate_replies: int
    handlers_stopped: int
    stale_settles: int


HEADINGS = {
    "scenario": "what happens",
    "sent": "events sent",
    "answered_200": "answered 200",
    "retried": "retried by Slack",
    "rescued_after": "rescued events run again after, s",
    "well_after": "well again after, s",
    "lost": "lost",
    "double_handled": "double handled",
    "over_limit": "claims over the limit",
    "duplicate_replies": "duplicate replies",
    "handlers_stopped": "handlers stopped",
    "stale_settles": "stale settles",
}


def table(rows: list[Row]) -> str:
    """Format the rows in Markdown."""
    names = [field.name for field in fields(Row)]
    lines = [[HEADINGS[name] for name in names], ["---", *["---:"] * (len(names) - 1)]]
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
