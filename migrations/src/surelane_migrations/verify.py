"""Whether a database is what this release's scripts make: version, checksums, objects, owners, grants."""

from dataclasses import dataclass
from pathlib import Path

from surelane_migrations.database import Connection, read_applied, read_version
from surelane_migrations.errors import DifferentError, ScriptsError
from surelane_migrations.files import PACKAGED, Scripts, compare
from surelane_migrations.version import RELEASE, Version

CATALOG = Path(__file__).with_name("catalog.sql").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Differences:
    """Lines of the catalogue that should be there and are not, and the reverse."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


async def describe_schema(connection: Connection) -> tuple[str, ...]:
    """Everything in the schema, a line each: columns, constraints, indexes, triggers, functions, grants."""
    async with connection.transaction(readonly=True):
        # Definitions are written with the schema's name for what is not on the path.
        await connection.execute("set local search_path = pg_catalog")
        return tuple(row["line"] for row in await connection.fetch(CATALOG))


def expected_schema(directory: Path = PACKAGED) -> tuple[str, ...]:
    """What ``schema.txt`` says the scripts make.

    Raises:
        ScriptsError: it is not there.
    """
    try:
        text = (directory / "schema.txt").read_text(encoding="utf-8")
    except OSError as error:
        raise ScriptsError(f"{directory / 'schema.txt'} cannot be read: {error.strerror}") from error
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))


async def verify(
    connection: Connection, scripts: Scripts, expected: tuple[str, ...], release: Version = RELEASE
) -> Differences:
    """Compare; changes nothing.

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
