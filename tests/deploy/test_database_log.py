"""The settings that Compose and Kubernetes give PostgreSQL keep an event's text out of its log."""

import tempfile
from pathlib import Path

import asyncpg
import pytest

from surelane_dev.postgres import embedded
from tests.deploy.compose import database_arguments, database_settings
from tests.deploy.manifests import DEMONSTRATION, containers, named, rendered
from tests.processes import until

FAILING = (
    "insert into note (text, kind) select $1, 'a' from generate_series(1, 2)",  # the detail quotes the key
    "insert into note (text) values ($1)",  # the detail quotes the row
    "select $1::text::jsonb",  # detail and context quote the JSON
    "select raised($1)",  # a function's own detail and hint
)
"""Statements that fail because of their parameter."""


def test_kubernetes_gives_the_database_what_compose_gives_it() -> None:
    (container,) = containers(named(rendered(DEMONSTRATION), "StatefulSet", "timescaledb"))
    assert container["args"] == ["postgres", *database_arguments()]


async def test_no_text_of_an_event_reaches_the_servers_log() -> None:
    settings = database_settings()
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="surelane-tests-") as directory:
        async with embedded(Path(directory), on_line=lines.append, settings=settings) as postgres:
            connection = await asyncpg.connect(postgres.uri)
            try:
                await connection.execute("create table note (text text unique, kind text not null)")
                await connection.execute(
                    "create function raised(text text) returns void language plpgsql as $$ begin"
                    " raise exception using message = 'refused', detail = text, hint = text; end $$"
                )
                await fail(connection, "private-words of an event")
                await connection.execute("set log_error_verbosity = 'verbose'")
                await connection.execute("set log_min_error_statement = error")
                await fail(connection, "private-words without the settings")
                await until(lambda: "HINT:" in str(lines), what="the last error's hint")
            finally:
                await connection.close()
    logged = "\n".join(lines)
    assert logged.count("ERROR:") == 2 * len(FAILING), "errors themselves are logged"
    assert "private-words of an event" not in logged, logged
    assert logged.count("private-words without the settings") > 2, "without them all of it is there"


async def fail(connection: "asyncpg.Connection[asyncpg.Record]", text: str) -> None:
    for statement in FAILING:
        with pytest.raises(asyncpg.PostgresError):
            await connection.execute(statement, text)
