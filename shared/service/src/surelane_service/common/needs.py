"""What Surelane needs of a database: before it is installed (`surelane_migrations check`), and after (the doctor)."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from .connecting import Connection

_NEED = re.compile(r"-- (need|warning|schema): ([^\n]+)\n(?:-- advice: (.+?)\n(?!--))?(.+?);\n", re.DOTALL)
NEEDS = _NEED.findall(Path(__file__).with_name("needs.sql").read_text(encoding="utf-8"))
"""Of each need its sort, its name, what to do, and the query."""
SEEN_BY = "connect as a member of agent_operator, or as the schema's owner"
INSTALLED = "select to_regclass('agent.event_hist') is not null"


@dataclass(frozen=True)
class NeedState:
    """What was found of a need. ``level`` is ok, unknown, warning or problem."""

    name: str
    level: str
    found: str
    advice: str | None = None


async def answered(connection: Connection, names: Collection[str] = ()) -> list[NeedState]:
    """Ask for each need, or for those that are named. What this role may not see is unknown."""
    answers = []
    installed = await connection.fetchval(INSTALLED)
    for sort, name, advice, query in NEEDS:
        if (names and name not in names) or (sort == "schema" and not installed):
            continue
        try:
            (row,) = await connection.fetch(query)
        except asyncpg.InsufficientPrivilegeError as error:
            answers.append(NeedState(name, "unknown", f"this role cannot see it: {error}", SEEN_BY))
            continue
        wrong, cure = row["wrong"], row.get("cure")
        level = "unknown" if wrong is None else "ok"
        if wrong:
            level = "warning" if sort == "warning" else "problem"
        told = advice.replace("\n-- ", " ").format(cure=cure) if wrong else None
        answers.append(NeedState(name, level, row["found"], told))
    return answers
