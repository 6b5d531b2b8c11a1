"""The URIs of the database's accounts are right for every form of URI."""

import pytest

from surelane_dev.accounts import uri_of
from tests.databases import as_role


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("postgresql://postgres@/postgres?host=/data/18", "postgresql://surelane@/app?host=/data/18"),
        ("postgresql://postgres:x@db:5433/postgres", "postgresql://surelane:surelane@db:5433/app"),
        ("postgresql://db/postgres?sslmode=require", "postgresql://surelane:surelane@db/app?sslmode=require"),
    ],
)
def test_the_server_stays_the_same(uri: str, expected: str) -> None:
    assert uri_of(uri, role="surelane", database="app") == expected


def test_another_role_keeps_the_database() -> None:
    uri = "postgresql://surelane@/app?host=/data/18"
    assert as_role(uri, "surelane_worker") == "postgresql://surelane_worker@/app?host=/data/18"
