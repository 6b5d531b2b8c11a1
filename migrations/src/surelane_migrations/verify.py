"""Compare a database with this release's scripts: version, checksums, objects, owners, grants."""

from dataclasses import dataclass
from pathlib import Path

from surelane_migrations.database import Connection, read_applied, read_version
from surelane_migrations.errors import DifferentError, ScriptsError
from surelane_migrations.files import PACKAGED, Scripts, compare
from surelane_migrations.version import RELEASE, Version

CATALOG = Path(__file__).with_name("catalog.sql").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Differences:
    """Objects that are missing from the database, and objects that should not be there."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


async def describe_schema(connection: Connection) -> tuple[str, ...]:
    """Return one line per column, constraint, index, trigger, function and grant of the schema."""
    async with connection.transaction(readonly=True):
        # PostgreSQL writes a schema's name in a definition if that schema is not on the path.
        await connection.execute("set local search_path = pg_catalog")
        return tuple(row["line"] for row in await connection.fetch(CATALOG))


def expected_schema(directory: Path = PACKAGED) -> tuple[str, ...]:
    """Return the lines of ``schema.txt``: the objects that the scripts create.

    Raises:
        ScriptsError: the file cannot be read.
    """
    try:
        text = (directory / "schema.txt").read_text(encoding="utf-8")
    except OSError as error:
        raise ScriptsError(f"{directory / 'schema.txt'} cannot be read: {error.strerror}") from error
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))


async def verify(
    connection: Connection, scripts: Scripts, expected: tuple[str, ...], release: Version = RELEASE
) -> Differences:
    """Compare the database with ``schema.txt``. Change nothing.

    Raises:
        DifferentError: the schema is not at ``release``, or its incremental scripts are not this release's.
    """
    found = await read_version(connection)
    if found is None or found.version != release:
        raise DifferentError(
            f"the schema is at {found.version if found else 'no version'}, and this release knows what "
            f"{release} looks like. Run apply, or verify with the release that was applied."
        )
    comparison = compare(scripts, await read_applied(connection))
    comparison.require_unchanged()
    if comparison.pending:
        raise DifferentError(
            f"incremental/{comparison.pending[0].file_name} was not applied; run apply --again"
        )
    actual = await describe_schema(connection)
    return Differences(
        missing=tuple(sorted(set(expected) - set(actual))),
        unexpected=tuple(sorted(set(actual) - set(expected))),
    )
