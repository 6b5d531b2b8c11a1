"""``surelane verify``: look in a live database for what the queue's rules exclude.

Each check is one bounded statement that reads one snapshot. A finding counts if a second look has it, too: sessions and
clocks are in no snapshot.
"""

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path

from surelane import __version__
from surelane.calls import Connection, translating
from surelane.errors import Conflict, DatabaseUnavailable
from surelane_operator.doctor.finding import Finding, Level, ok
from surelane_service.common.schema import describe_schema, differences, recorded

ROWS = 10_000
"""Rows that a check looks at, at most, unless told otherwise."""
QUICK = 1_000
"""The same for the doctor, which looks every minute."""
BOUNDS = "set local statement_timeout = '10s'; set local lock_timeout = '1s'; set local jit = off"
AGAIN = 1.0
"""Seconds between the two looks."""
NAMED = 5
"""The most rows that a finding names."""


@dataclass(frozen=True, slots=True)
class Check:
    """A rule. ``wrong`` selects the names of the rows that break it, among those that ``looked`` selects of ``table``.

    A name is the same in both looks. ``cure`` is SQL for the schema's owner, with ID in place of the name. A ``quick``
    check is one of the doctor's, too.
    """

    name: str
    looked: str
    wrong: str
    means: str
    advice: str
    table: str | None = None
    cure: str | None = None
    quick: bool = False


_FIELD = re.compile("-- (look|rule|table|name|means|advice|quick)(?:: (.*))?")


def _read(text: str) -> Iterator[Check]:
    """Read the table of rules; ``rules.sql`` says how it is written."""
    look: dict[str, str] = {}
    for block in text.strip().split("\n\n")[1:]:
        lines = block.splitlines()
        said: dict[str, str] = {}
        for line in takewhile(lambda each: each.startswith("-- "), lines):
            named = _FIELD.fullmatch(line)
            field = named[1] if named else next(reversed(said))
            said[field] = (named[2] or "") if named else f"{said[field]} {line[3:]}"
        sql = "\n".join(dropwhile(lambda each: each.startswith("-- "), lines)).removesuffix(";")
        query, _, cure = sql.partition(";\n")
        if "look" in said:
            look = said | {"query": query}
            continue
        if not query.startswith("select "):
            query = f"select distinct {look['name']} from looked as e cross join moment where {query}"  # noqa: S608
        cure = " ".join(cure.split())
        table, quick = look.get("table"), "quick" in said
        yield Check(
            said["rule"], look["query"], query, said["means"], said["advice"], table, cure or None, quick
        )


CHECKS = tuple(_read(Path(__file__).with_name("rules.sql").read_text(encoding="utf-8")))


async def look(connection: Connection, check: Check, rows: int) -> Sequence[Finding]:
    """Look once, and again at what is wrong. ``rows`` bounds how many it looks at."""
    try:
        looked, wrong = await _looked(connection, check, rows)
        if wrong:
            await asyncio.sleep(AGAIN)
            again = (await _looked(connection, check, rows))[1]
            wrong = sorted(set(wrong).intersection(again))
    except (Conflict, DatabaseUnavailable) as error:
        return [_given_up(connection, check.name, error)]
    among = f"{looked:,}"
    if looked == rows:
        known = await connection.fetchval(
            "select reltuples::int8 from pg_class where oid = to_regclass($1)", check.table
        )
        among = f"the first {looked:,}" + (f" of about {known:,}" if known and known > rows else "")
    if not wrong:
        return [ok(check.name, f"{among} looked at")]
    named = "; ".join(wrong[:NAMED]) + ("; …" if len(wrong) > NAMED else "")
    found = f"{len(wrong):,} of {among}: {check.means}: {named}"
    if check.cure is None:
        return [Finding(check.name, Level.PROBLEM, found, check.advice)]
    first = _OF_NAME.sub("", wrong[0]).partition(",")[0].replace("'", "''")
    return [Finding(check.name, Level.PROBLEM, found, f"{check.advice}: {check.cure.replace('ID', first)}")]


_OF_NAME = re.compile("^(?:[a-z ]+ of )?(?:event|group|schedule|worker|kind|model) ")
"""What stands before the key in the name of a row."""


def _given_up(connection: Connection, name: str, error: Exception) -> Finding:
    """Say that a lock or the time ended a look. Without a connection the error is the caller's."""
    if connection.is_closed():
        raise error
    return Finding(name, Level.UNKNOWN, f"it was given up: {error}", "run it again, or with fewer --rows")


async def objects(connection: Connection) -> Sequence[Finding]:
    """Compare every object and grant of the schema with the record of this release."""
    at, expected = await connection.fetchval("select version from agent.schema_version()"), recorded()
    if at != __version__:
        found = f"this release knows the objects of {__version__}, and the schema is at {at}"
        return [Finding("objects", Level.UNKNOWN, found, "run verify with the release that was applied")]
    try:
        with translating():
            async with connection.transaction(readonly=True):
                await connection.execute(BOUNDS)
                different = differences(await describe_schema(connection), expected)
    except (Conflict, DatabaseUnavailable) as error:
        return [_given_up(connection, "objects", error)]
    if not different:
        return [ok("objects", f"{len(expected):,} objects and grants are as this release makes them")]
    named = "; ".join(" ".join(line[:150].split()) for line in different[:NAMED]) + (
        "; …" if different[NAMED:] else ""
    )
    advice = "functions, views and grants: python -m surelane_migrations apply --again; the others by hand"
    return [Finding("objects", Level.PROBLEM, f"{len(different):,} differ: {named}", advice)]


async def _looked(connection: Connection, check: Check, rows: int) -> tuple[int, list[str]]:
    """Return how many rows a check has looked at, and the names of those that are wrong."""
    with translating():
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await connection.execute(BOUNDS)
            (row,) = await connection.fetch(
                "with moment as materialized (select agent.clock() as now)"  # noqa: S608 - ours
                f", looked as materialized ({check.looked} limit $1)"
                f" select (select count(*) from looked) as looked, array({check.wrong}) as wrong",
                rows,
            )
    return row["looked"], row["wrong"]
