"""``surelane doctor`` finds each problem and gives advice. A role with fewer rights learns what it cannot see."""

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.doctor import Finding, Level, examine
from surelane_operator.doctor.invariants import CHECKS
from surelane_service.engine import Engine
from tests.databases import Server, as_role
from tests.sql.migrations import connected
from tests.system.pooler import pooled
from tests.system.test_cli import Command

Examine = Callable[..., Awaitable[list[Finding]]]
CHECKED = {
    *("schema", "roles", "timeline", "notifications", "clock", "dead rows", "indexes", "vacuum", "workers"),
    *("first calls", "queue", "refused claims", "schedules", "history", "foreign locks", "certificate"),
    *(check.name for check in CHECKS if check.quick),
}


@pytest.fixture
def findings(database: str) -> Examine:
    """Return a function that runs the doctor as a service's role, and returns the findings of all checks or one."""

    async def found(check: str | None = None, role: str = "surelane_operator") -> list[Finding]:
        uri = as_role(database, role)
        async with connected(uri) as connection:
            everything = await examine(uri, connection)
        return [finding for finding in everything if check is None or finding.check == check]

    return found


def levels(findings: list[Finding]) -> set[str]:
    return {finding.level.value for finding in findings}


async def hold_vacuum(connection: Connection, **holder: object) -> None:
    """Make the figures say that something has held back vacuum for a long time."""
    values = {"pid": None, "application": "x", "state": "active", "anchor": "1", "since": 1e9, **holder}
    await connection.execute(
        "update agent.measurement set due = 'infinity', measured_at = now()"
        ", figures = jsonb_set(agent.queue_figures(null), '{holder}', $1)",
        json.dumps(values),
    )


async def test_where_all_is_well_it_says_so(database: str, connection: Connection) -> None:
    await Engine(connection).announce_worker("w1", ["mail"], "0.1.0")
    done = await Command(as_role(database, "surelane_operator"))("doctor")
    lines = done.out.splitlines()
    assert (done.code, {line.split()[0] for line in lines}) == (0, {"ok"}), done.out
    checked = [line.split(maxsplit=1)[1].partition(":")[0] for line in lines]
    assert set(checked) >= CHECKED


async def test_a_problem_is_an_exit_code_and_advice(empty_database: str) -> None:
    done, shown, helped = await Command(empty_database).each("doctor --json", "doctor", "doctor --help")
    said = json.loads(done.out)
    (problem,) = [finding for finding in said["findings"] if finding["level"] == "problem"]
    assert (done.code, said["healthy"], problem["check"]) == (1, False, "schema")
    assert "surelane_migrations apply" in problem["advice"]
    assert (shown.code, "-> run: python -m surelane_migrations apply" in shown.out) == (1, True)
    assert (helped.code, "exits with 1 on a problem" in " ".join(helped.out.split())) == (0, True)


async def test_a_role_that_may_see_less_learns_it_and_a_schema_that_is_too_old_is_a_problem(
    connection: Connection, findings: Examine
) -> None:
    found = await findings(role="surelane_ingest")
    unseen = [finding for finding in found if finding.level is Level.UNKNOWN]
    quick = [check.name for check in CHECKS if check.quick]
    assert [finding.check for finding in unseen] == [
        "sequences",
        "first calls",
        "foreign locks",
        "workers",
        "versions",
        "refused claims",
        "schedules",
        "socket mode",
        *quick,
        "history",
    ]
    assert all("agent_operator" in (finding.advice or "") for finding in unseen)
    assert levels(found) == {"ok", "unknown"}
    await connection.execute("update agent.version set version = '0.0.1', min_compatible = '0.0.1'")
    (finding,) = await findings("schema")
    assert (finding.level, "older than" in finding.found) == (Level.PROBLEM, True)


async def test_wrong_rights_clocks_settings_and_indexes_are_found(
    connection: Connection, database: str, server: Server, findings: Examine
) -> None:
    for statement in (
        "revoke execute on all functions in schema agent from agent_worker",
        "grant execute on function agent.rerun_events(int8[]) to public",
        "select agent.announce_worker('fast', '{}', '0.1.0', '3 s')",
        "select agent.announce_worker('slow', '{}', '0.1.0', '-1 min')",
        "alter table agent.event set (autovacuum_enabled = off)",
    ):
        await connection.execute(statement)
    name = database.partition("?")[0].rpartition("/")[2]
    async with asyncpg.create_pool(server.admin, database=name, min_size=1, max_size=1) as admin:
        invalid = "update pg_index set indisvalid = false where indexrelid = 'agent.event_claim'::regclass"
        await admin.execute(invalid)
    found: dict[str, list[Finding]] = {}
    for finding in await findings(role="surelane"):
        found.setdefault(finding.check, []).append(finding)
    missing, open_to_all = found["roles"]
    assert (missing.level, "agent_worker" in missing.found) == (Level.PROBLEM, True)
    assert (open_to_all.level, "rerun_events" in open_to_all.found) == (Level.WARNING, True)
    assert missing.advice == open_to_all.advice == "run: python -m surelane_migrations apply --again"
    assert [each.level for each in found["clock"]] == [Level.OK, Level.WARNING, Level.PROBLEM]
    assert "fast is 3 s ahead of" in found["clock"][1].found
    assert [each.level for each in found["dead rows"]].count(Level.PROBLEM) == 1
    (index,) = found["indexes"]
    assert (index.level, index.advice) == (Level.PROBLEM, "reindex index concurrently agent.event_claim")


BROKEN = {
    "revoke usage on schema agent from agent_ingest": "agent_ingest cannot call agent.takes_events: permission"
    " denied for schema agent (42501",
    "alter table agent.event add constraint no_a check (kind <> 'slack.app_mention')": "agent.takes_events: new row"
    ' for relation "event" violates check constraint "no_a" (23514, agent.event.no_a)',
    "alter table agent.kind rename to gone": 'relation "agent.kind" does not exist (42P01, agent.',
    "create function public.f() returns trigger language plpgsql as 'begin raise ''no room''; end';"
    "create trigger t before insert on agent.event execute function public.f()": "agent_producer cannot call"
    " agent.enqueue: no room (P0001, public.f)",
}


@pytest.mark.parametrize("statement", BROKEN)
async def test_what_each_service_would_meet_first_is_told_with_its_reason(
    connection: Connection, findings: Examine, statement: str
) -> None:
    (well,) = await findings("first calls")
    assert (well.level, "agent.settle" in well.found) == (Level.OK, True)
    await connection.execute(statement)
    found = [each.found for each in await findings("first calls") if each.level is Level.PROBLEM]
    assert any(BROKEN[statement] in each for each in found), found


async def test_notices_that_a_pooler_swallows_are_a_problem(database: str) -> None:
    async with pooled(as_role(database, "surelane_worker")) as through:
        connection = await asyncpg.connect(through, statement_cache_size=0)
        try:
            (problem,) = [each for each in await examine(through, connection) if each.level is Level.PROBLEM]
        finally:
            await connection.close()
    assert problem.check == "notifications"
    assert "SURELANE_NOTIFICATIONS=off" in (problem.advice or "")


HOLDERS: list[tuple[dict[str, object], str, str]] = [
    (
        {"holder": "session", "pid": 7},
        "session 'x', pid 7, active, has held back vacuum",
        "pg_terminate_backend(7)",
    ),
    ({"holder": "session", "pid": 7, "state": None}, "hidden", "grant pg_read_all_stats"),
    ({"holder": "prepared", "application": "two phase"}, "'two phase'", "rollback prepared 'two phase'"),
    ({"holder": "slot", "application": "standby"}, "'standby'", "pg_drop_replication_slot('standby')"),
]


async def test_a_holder_of_vacuum_is_named_with_advice(connection: Connection, findings: Examine) -> None:
    async with connection.transaction():
        await connection.execute("select agent.measure_queue()")
        (unknown,) = await findings("vacuum")
        assert (unknown.level, "first time" in unknown.found) == (Level.UNKNOWN, True), "it is being measured"
    for holder, found, advice in HOLDERS:
        await hold_vacuum(connection, **holder)
        (finding,) = await findings("vacuum")
        assert (finding.level, found in finding.found) == (Level.PROBLEM, True), holder
        assert advice in (finding.advice or "")


async def test_events_without_a_worker_are_a_problem(connection: Connection, findings: Examine) -> None:
    queue = Queue(connection)
    (absent,) = await findings("workers")
    assert absent.level is Level.WARNING, "nothing waits for one"
    await queue.enqueue("mail")
    await connection.execute("update agent.measurement set due = '-infinity'")
    (absent,) = await findings("workers")
    assert absent.level is Level.PROBLEM
    await Engine(connection).announce_worker("w1", ["note"], "0.1.0")
    await Engine(connection).announce_worker("w2", ["note"], "0.1.0")
    await connection.execute("update agent.worker set seen_at = now() - interval '125 s' where name = 'w2'")
    counted, unhandled = await findings("workers")
    assert counted.found == "1 alive, of version 0.1.0; silent: w2 (2 min ago)"
    assert unhandled.found == "no worker handles these pending kinds: mail"
    await connection.execute("delete from agent.event; update agent.worker set seen_at = now()")
    await Engine(connection).announce_worker("w3", ["note"], "0.1.0")
    await connection.execute("update agent.worker set session = 0 where name <> 'w1'")  # no lock has this key
    await connection.execute("update agent.worker set died_at = now() - interval '9 s' where name = 'w2'")
    counted, *_ = await findings("workers")
    assert re.match(r"1 alive, of version 0\.1\.0; died: w2 \(\d+ s ago\); lost: w3 \(", counted.found)
    assert (counted.level, (counted.advice or "").count(";")) == (Level.WARNING, 3)


async def test_events_that_nothing_takes_are_found(
    connection: Connection, findings: Examine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    events = ("app_mention@2", "reaction_added", "message_changed", "block_actions")
    await Engine(connection).announce_worker("w1", [*(f"slack.{each}" for each in events), "mail"], "0.1.0")
    monkeypatch.delenv("SURELANE_EVENT_TYPES", raising=False)
    _, unset = await findings("workers")
    assert (unset.level, "so ingest leaves out reaction_added" in unset.found) == (
        Level.WARNING,
        True,
    )
    monkeypatch.setenv("SURELANE_EVENT_TYPES", "app_mention, team_join")
    _, gaps = await findings("workers")
    assert "SURELANE_EVENT_TYPES leaves out reaction_added: " in gaps.found
    assert "; no worker handles team_join, which ingest stores" in gaps.found
    monkeypatch.setenv("SURELANE_EVENT_TYPES", "app_mention,reaction_added")
    assert levels(await findings("workers")) == {"ok"}
    manifest = tmp_path / "manifest.yaml"
    monkeypatch.setenv("SURELANE_MANIFEST", str(manifest))
    (unreadable,) = [each for each in await findings("workers") if each.level is Level.WARNING]
    assert unreadable.found == f"SURELANE_MANIFEST: {manifest}: No such file or directory"
    manifest.write_text("settings: {event_subscriptions: {bot_events: [app_mention]}}")
    _, lacking = await findings("workers")
    assert "the app's manifest does not subscribe to reaction_added" in lacking.found
    monkeypatch.delenv("SURELANE_EVENT_TYPES")
    manifest.write_text("settings: {event_subscriptions: {bot_events: [app_mention, reaction_added]}}")
    assert levels(await findings("workers")) == {"ok"}


async def test_agents_that_hear_mentions_alone_are_found(
    connection: Connection, findings: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = ("app_mention", "message.im", "agent_session_stopped")
    kinds = [f"slack.{each}" for each in (*types, "message.channels")]
    await Engine(connection).announce_worker("w1", kinds, "0.1.0")
    monkeypatch.setenv("SURELANE_EVENT_TYPES", ",".join(types))
    _, deaf = await findings("workers")
    assert re.search(r"agents do not hear messages without a mention: .* message\.channels", deaf.found)
    monkeypatch.setenv("SURELANE_EVENT_TYPES", ",".join((*types, "message.channels")))
    assert levels(await findings("workers")) == {"ok"}


async def test_a_backlog_that_gets_old_is_found_and_a_paused_one_too(
    connection: Connection, findings: Examine
) -> None:
    queue = Queue(connection)
    await queue.enqueue("mail")
    await queue.enqueue("note")
    await connection.execute("update agent.event set vt = vt - interval '2 hours'")
    await connection.execute("select agent.pause_kind('note')")
    backlog, paused = await findings("queue")
    assert (backlog.level, backlog.found) == (
        Level.PROBLEM,
        "2 pending, 0 running; the oldest, of kind mail, has waited for 2 h",
    )
    assert (paused.level, paused.advice) == (Level.WARNING, "when it is time: surelane kinds resume note")
