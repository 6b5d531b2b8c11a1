"""What schema `agent` has, and what this release's scripts make: `surelane_migrations verify`, `surelane verify`."""

from collections.abc import Collection
from pathlib import Path

from .connecting import Connection

CATALOG = Path(__file__).with_name("catalog.sql").read_text(encoding="utf-8")
RECORD = Path(__file__).with_name("schema.txt")
"""A line for each object and grant that the scripts make."""


async def describe_schema(connection: Connection) -> tuple[str, ...]:
    """Return one line per column, constraint, index, trigger, function and grant of the schema."""
    async with connection.transaction(readonly=True):
        # PostgreSQL writes a schema's name in a definition if that schema is not on the path.
        await connection.execute("set local search_path = pg_catalog")
        return tuple(row["line"] for row in await connection.fetch(CATALOG))


def recorded(path: Path = RECORD) -> tuple[str, ...]:
    """Return the lines of a record."""
    text = path.read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))


def differences(actual: Collection[str], expected: Collection[str]) -> list[str]:
    """Return a line for each object that is missing, or should not be there."""
    missing, unexpected = sorted(set(expected) - set(actual)), sorted(set(actual) - set(expected))
    return [f"missing:    {line}" for line in missing] + [f"unexpected: {line}" for line in unexpected]
