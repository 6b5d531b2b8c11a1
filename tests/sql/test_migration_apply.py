"""A migration runs the right scripts in order, each as often as it should, and refuses changed ones."""

import re
from pathlib import Path

import asyncpg
import pytest

from surelane_migrations.errors import DifferentError, IncompatibleError, MigrationError
from tests.sql.migrations import (
    FIRST,
    SECOND,
    connected,
    migration,
    one_returns,
    refused,
    state,
    write_scripts,
)


async def test_an_empty_database_gets_everything_in_order(empty_database: str, tmp_path: Path) -> None:
    write_scripts(
        tmp_path,
        incremental={
            "000-log.sql": "create table agent.log (id int generated always as identity primary key, line text)",
            "001-b.sql": "insert into agent.log (line) values ('001'); insert into agent.log (line) values ('001')",
        },
        idempotent={
            "000-c.sql": "insert into agent.log (line) values ('000');",
            "001-d.sql": "insert into agent.log (line) values ('last')",
        },
    )
    outcome = await migration(tmp_path).apply(empty_database)
    assert (outcome.before, outcome.after) == (None, FIRST)
    assert (outcome.incremental, outcome.idempotent) == (2, 2)
    async with connected(empty_database) as connection:
        lines = await connection.fetch("select line from agent.log order by id")
        assert [row["line"] for row in lines] == ["001", "001", "000", "last"]
        assert tuple(await connection.fetchrow("select * from agent.version") or ()) == (
            str(FIRST),
            str(FIRST),
        )
        applied = await connection.fetch(
            "select *, now() - applied_at as age from agent.migration order by file_name"
        )
    assert [(row["file_name"], row["version"]) for row in applied] == [
        ("000-log.sql", str(FIRST)),
        ("001-b.sql", str(FIRST)),
    ]
    assert all(len(row["checksum"]) == 64 and row["age"].total_seconds() < 60 for row in applied)


async def test_a_newer_release_runs_new_scripts_and_idempotent_ones(
    empty_database: str, tmp_path: Path
) -> None:
    await migration(write_scripts(tmp_path)).apply(empty_database)
    write_scripts(
        tmp_path,
        incremental={"001-note-owner.sql": "alter table agent.note add owner text"},
        idempotent={"000-one.sql": one_returns(2)},
    )
    outcome = await migration(tmp_path, SECOND).apply(empty_database)
    assert (outcome.before, outcome.after, outcome.incremental) == (FIRST, SECOND, 1)
    async with connected(empty_database) as connection:
        assert await connection.fetchval("select agent.one()") == 2
        recorded = await connection.fetch("select file_name, version from agent.migration order by 1")
        assert [tuple(row) for row in recorded] == [
            ("000-note.sql", str(FIRST)),
            ("001-note-owner.sql", str(SECOND)),
        ]
        assert await connection.fetchval("select version from agent.version") == str(SECOND)


async def test_an_equal_version_changes_nothing_unless_asked_to(empty_database: str, tmp_path: Path) -> None:
    """Running again restores what was changed by hand, and may add a script."""
    await migration(write_scripts(tmp_path)).apply(empty_database)
    before = await state(empty_database)
    write_scripts(tmp_path, idempotent={"000-one.sql": one_returns(2)})
    assert not (await migration(tmp_path).apply(empty_database)).migrated
    assert await state(empty_database) == before
    async with connected(empty_database) as connection:
        await connection.execute(one_returns(7))
    await migration(write_scripts(tmp_path), again=True).apply(empty_database)
    assert await state(empty_database) == before
    write_scripts(tmp_path, incremental={"001-late.sql": "create table agent.late ()"})
    late = r"without incremental/001-late\.sql.*new version"
    async with refused(empty_database, DifferentError, late):
        await migration(tmp_path).apply(empty_database)
    assert (await migration(tmp_path, again=True).apply(empty_database)).incremental == 1


async def test_a_newer_database_is_refused_with_both_versions(empty_database: str, tmp_path: Path) -> None:
    await migration(write_scripts(tmp_path), SECOND).apply(empty_database)
    newer = rf"at 100\.0\.0, newer than this release, {re.escape(str(FIRST))}.*run 100\.0\.0 or later"
    async with refused(empty_database, IncompatibleError, newer):
        await migration(tmp_path).apply(empty_database)


@pytest.mark.parametrize("upgrade", [False, True])
async def test_a_failing_script_leaves_what_was(empty_database: str, tmp_path: Path, upgrade: bool) -> None:
    if upgrade:
        await migration(write_scripts(tmp_path)).apply(empty_database)
        (tmp_path / "idempotent" / "000-one.sql").unlink()
    names = [f"{int(upgrade) + n:03d}-{n}.sql" for n in range(3)] + ["000-d.sql", "001-e.sql"]
    for failing in names:
        scripts = [
            (name, f"create table agent.t{n} as select 1;\nselect {'no_such()' if name == failing else 1};")
            for n, name in enumerate(names)
        ]
        write_scripts(tmp_path, incremental=dict(scripts[:3]), idempotent=dict(scripts[3:]))
        said = rf"{failing} failed at line 2: .*no_such.*Nothing was applied"
        async with refused(empty_database, MigrationError, said):
            await migration(tmp_path, SECOND).apply(empty_database)


DEFERRED = """
create table agent.parent (id int primary key);
create table agent.child (id int references agent.parent deferrable initially deferred);
insert into agent.child values (1);
"""
UNCOMMITTED = {
    DEFERRED: r"the database refused: .*foreign key.*Nothing was applied",
    **{
        f"create table agent.half (); {statement}; select 1": r"incremental/000-a\.sql.* begins or ends a transaction"
        for statement in ("commit", "rollback", "begin", "end", "savepoint a", "start transaction")
    },
}


async def test_a_script_that_ends_the_transaction_or_violates_at_its_commit_leaves_nothing(
    empty_database: str, tmp_path: Path
) -> None:
    for script, says in UNCOMMITTED.items():
        write_scripts(tmp_path, incremental={"000-a.sql": script})
        async with refused(empty_database, MigrationError, says):
            await migration(tmp_path).apply(empty_database)


async def test_scripts_find_nothing_in_public(empty_database: str, tmp_path: Path) -> None:
    async with connected(empty_database) as connection:
        await connection.execute(
            "create function public.length(_text text) returns int language sql as 'select 666'; "
            "create table public.note (id text)"
        )
    write_scripts(
        tmp_path,
        incremental={
            "000-note.sql": "create table agent.note (n int); set local search_path = public",
            "001-use.sql": "insert into note values (length('four'::text))",
        },
    )
    await migration(tmp_path).apply(empty_database)
    async with connected(empty_database) as connection:
        assert [row["n"] for row in await connection.fetch("select n from agent.note")] == [4]


async def test_notices_are_shown_without_remarks_on_what_exists(empty_database: str, tmp_path: Path) -> None:
    notice = (
        "do $$ begin raise notice 'no right to create roles'; end $$; drop table if exists agent.no_such;"
    )
    lines: list[str] = []
    await migration(write_scripts(tmp_path, idempotent={"000-n.sql": notice}), lines=lines).apply(
        empty_database
    )
    assert "  notice: no right to create roles" in lines
    assert not [line for line in lines if "skipping" in line]
    assert [line for line in lines if line.startswith("  idempotent/000-n.sql") and line.endswith(" ms")]


async def test_the_runners_tables_hold_candidates_and_no_nonsense(
    empty_database: str, tmp_path: Path
) -> None:
    await migration(write_scripts(tmp_path)).apply(empty_database)
    async with connected(empty_database) as connection:
        for statement in (
            "insert into agent.version values ('0.3.0', '0.1.0')",
            "delete from agent.version",
            "truncate agent.version",
            "update agent.version set version = 'latest'",
            "update agent.version set version = '0.1'",
            "update agent.version set version = '01.0.0'",
            "update agent.version set version = '1.0.0-rc1'",
            "update agent.version set version = '1.0.0 1.0.0', min_compatible = ''",
            "update agent.version set version = null",
            "update agent.version set min_compatible = ''",
            "update agent.version set min_compatible = '0.10.0', version = '0.9.0'",
            "update agent.migration set checksum = 'x'",
            "update agent.migration set file_name = '0000-a.sql'",
        ):
            with pytest.raises(asyncpg.IntegrityConstraintViolationError):
                await connection.execute(statement)
        assert await connection.fetchval("select count(*) from agent.version") == 1
        await connection.execute("update agent.version set version = '1.0.0rc2', min_compatible = '1.0.0rc1'")
