"""Give the tests a database in virtual time."""

from collections.abc import Iterator

import pytest

from tests.databases import Server


@pytest.fixture(scope="session")
def virtual_database(server: Server, template: str) -> Iterator[object]:
    """Copy a migrated database whose clock is the tests' virtual time. Each fleet begins with it empty."""
    from surelane_dev.testing.fleets import virtual_databases  # noqa: PLC0415 - slow to import

    with virtual_databases(server.admin, template) as database:
        yield database
