"""What a database lacks is found by name, before installing and after; the advice, carried out, cures it."""

import re
from pathlib import Path

import asyncpg
import pytest

from surelane_service.common import needs
from surelane_service.common.needs import NEEDS, answered
from tests.databases import Server, as_role
from tests.sql.migrations import command, connected
from tests.system.test_cli import Command

BROKEN = {
    "writes": ("alter database {db} set default_transaction_read_only = on", "read-only by default", ""),
    "triggers": (
        "alter role surelane in database {db} set session_replication_role = replica",
        "session_replication_role replica",
        "",
    ),
    "isolation": (
        "alter role surelane_ingest in database {db} set default_transaction_isolation = 'serializable'",
        "serializable",
        "cure",
    ),
    "logins": (
        """create role {db} login connection limit 1 valid until '2020-01-01'; grant agent_worker to {db};
        alter role {db} in database {db} set default_transaction_read_only = on;
        alter role {db} set role = 'agent_worker'""",
        ": 1 connections at most; ",
        "cure",
    ),
    "ownership": (
        "alter table agent.rule owner to postgres; alter function agent.clock owner to postgres",
        "routine agent.clock(), table agent.rule",
        "cure",
    ),
    "row security": (
        "alter table agent.event enable row level security, force row level security",
        "switched on: event",
        "cure",
    ),
    "publications": (
        "create publication everything for all tables; alter table agent.band replica identity default",
        "of our tables: everything; tables without a replica identity: band",
        "apply",
    ),
    # As on another image's libc. Without versions, there is nothing to compare.
    "collation": (
        """update pg_database set datcollversion = '0' where datname = '{db}'
        and pg_database_collation_actual_version(oid) is not null""",
        "locale data of version 0; the server has ",
        "cure",
    ),
    "sequences": (
        "insert into agent.event (id, event_ts, event, kind, head, lane) values (77, now(), '{{}}', 'k', true, 0)",
        "the newest stored 77",
        "cure",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_wrong_is_found_and_the_advice_cures(database: str, server: Server, name: str) -> None:
    breaking, found, way = BROKEN[name]
    db = database.partition("?")[0].rpartition("/")[2]
    admin = await asyncpg.connect(server.admin, database=db)
    try:
        await admin.execute(breaking.format(db=db))
        async with connected(database) as owner:
            (answer,) = await answered(owner, [name])
        if answer.found.endswith("the server has none"):
            assert answer.level == "ok"
            return
        assert (answer.level in ("problem", "warning"), found in answer.found) == (True, True), answer
        assert answer.advice
        if way == "cure":
            cure = re.search(r"((alter|select|create|reindex) .*)", answer.advice)
            assert cure
            for statement in cure[1].split("; ") if name == "collation" else [cure[1]]:
                await admin.execute(statement)
        elif way == "apply":
            assert (await command(database, "apply", "--again")).code == 0
        else:
            await admin.execute(f"alter database {db} reset default_transaction_read_only")
            await admin.execute(f"alter role surelane in database {db} reset session_replication_role")
        async with connected(database) as owner:
            (answer,) = await answered(owner, [name])
        assert answer.level == "ok", answer
    finally:
        await admin.execute(f"drop role if exists {db}")
        await admin.close()


async def test_the_checks_say_that_they_cannot_see_behind_row_security(database: str) -> None:
    async with connected(database) as owner:
        await owner.execute("alter table agent.event enable row level security")
    shown = await Command(as_role(database, "surelane_operator"))("verify")
    lines = shown.out.splitlines()
    assert shown.code == 1
    assert any(line.startswith("problem  row security: switched on: event") for line in lines)
    assert any(line.startswith("unknown  group heads: this role may not see it") for line in lines), shown.out
    assert not any(line.startswith("ok       group heads") for line in lines)


async def test_each_need_is_told_before_installing_and_after(empty_database: str) -> None:
    text = Path(needs.__file__).with_suffix(".sql").read_text()
    names = re.findall(r"^-- (?:need|warning|schema): (.+)", text, re.MULTILINE)
    assert [need[1] for need in NEEDS] == names
    before = await command(empty_database, "check")
    assert (before.code, before.progress) == (0, ""), before.output
    assert [
        line.split(maxsplit=1)[1].partition(":")[0] for line in before.output.splitlines() if line[0] != " "
    ] == [
        *(name for name in names if name not in ("collation", "sequences")),
        "schema agent",
    ]
    async with connected(empty_database) as owner:
        await owner.execute("create schema agent; create table agent.memory (id int)")
    refused = await command(empty_database, "check")
    assert (refused.code, "another program's: it has memory" in refused.output) == (4, True), refused.output
    async with connected(empty_database) as owner:
        await owner.execute("drop schema agent cascade")
    assert (await command(empty_database, "apply")).code == 0
    shown = await Command(as_role(empty_database, "surelane_operator"))("doctor", "--needs")
    assert (shown.code, "ok       sequences: " in shown.out) == (0, True), shown


async def test_a_foreign_function_that_stops_a_migration_is_named(
    empty_database: str, server: Server
) -> None:
    db = empty_database.partition("?")[0].rpartition("/")[2]
    admin = await asyncpg.connect(server.admin, database=db)
    try:
        await admin.execute(
            "create function public.no() returns event_trigger language plpgsql as"
            " $$ begin raise 'not allowed: %', tg_tag; end $$;"
            "create event trigger no_change on ddl_command_end when tag in ('ALTER TABLE') execute function public.no()"
        )
    finally:
        await admin.close()
    done = await command(empty_database, "apply")
    assert (done.code, "The function public.no raised it" in done.progress) == (1, True), done
