"""The operator's command ``surelane`` prints tables and JSON, and ends with the documented exit codes."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from typer.testing import CliRunner

from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from surelane_operator.audit import this_user
from surelane_operator.cli.command import app
from surelane_service.engine import Engine
from tests import forked
from tests.databases import as_role
from tests.processes import clean_environment, free_port


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


@dataclass(frozen=True)
class Command:
    """The command, on a database."""

    database: str

    async def start(self, *arguments: str, **env: str) -> asyncio.subprocess.Process:
        settings = {**clean_environment(), "COLUMNS": "200", "DATABASE_URL": self.database, **env}
        return await forked.start("surelane_operator.cli", *arguments, env=settings, stderr=True)

    async def process(self, *arguments: str, **env: str) -> Done:
        """Run it as its users do."""
        process = await self.start(*arguments, **env)
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        return Done(process.returncode or 0, out.decode(), err.decode())

    async def __call__(self, *arguments: str, **env: str) -> Done:
        """Run it in this process, because starting another one takes longer than all the rest."""
        chosen = {"COLUMNS": "200", "SURELANE_OPERATOR_DATABASE_URL": self.database, **env}
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=chosen)
        return Done(result.exit_code, result.stdout, result.stderr)

    async def each(self, *calls: str) -> list[Done]:
        """Run several commands, given as lines without quoting."""
        return [await self(*call.split()) for call in calls]


@pytest.fixture
async def connection(shared_database: str) -> AsyncIterator[Connection]:
    connected = await asyncpg.connect(shared_database)
    await connected.execute("truncate agent.event, agent.event_hist, agent.kind, agent.cron, agent.worker")
    yield connected
    await connected.close()


@pytest.fixture
def surelane(shared_database: str, connection: Connection) -> Command:  # noqa: ARG001 - an empty queue
    """Return the command, as a member of ``agent_operator``."""
    return Command(as_role(shared_database, "surelane_operator"))


async def fail(connection: Connection, identity: int, message: str) -> None:
    """Fail a job at its last attempt."""
    await connection.execute("select agent.claim_events(array['mail'], _limit => 1)")
    error = {"type": "ValueError", "message": message, "at": "2026-01-01T00:00:00Z", "worker": "w"}
    await connection.execute(
        "select agent.settle($1, '{1}', '{fail}', $2)",
        [identity],
        [json.dumps({"error": error, "final": True})],
    )


async def test_failed_events_are_found_explained_and_put_back(
    surelane: Command, connection: Connection
) -> None:
    queue = Queue(connection)
    identity = await queue.enqueue("mail", {"to": "ada"}, item_key="welcome:ada", enqueued_by="blog")
    await fail(connection, identity, "mailbox [full]")
    await queue.enqueue("mail", {"to": "bob"}, item_key="welcome:bob")

    table, listed, shown, why, history, story = await surelane.each(
        "events list --status failed",
        "events list --status failed --json",
        "events show welcome:ada --json",
        f"events why {identity} --json",
        "events history welcome:ada",
        "events history welcome:ada --json",
    )

    assert table.code == 0
    assert "mailbox [full]" in table.out
    assert "welcome:bob" not in table.out
    assert [job["id"] for job in listed.json] == [identity]
    assert (shown.json["payload"], shown.json["status"]) == ({"to": "ada"}, "failed")
    assert why.json["reason"] == "ended"
    assert [step["what"] for step in story.json["steps"]][-2:] == ["claimed", "failed"]
    assert "blog" in history.out
    assert story.json["trace"] in history.out

    as_in_0_2_0 = await surelane("jobs", "list", "--status", "failed", "--json")
    assert as_in_0_2_0.json == listed.json

    rerun = await surelane("events", "rerun", "welcome:ada")
    assert (rerun.code, rerun.out) == (0, f"1 run again: {identity}\n")
    again, cancelled = (
        await surelane("events", "rerun", "welcome:ada"),
        await surelane("events", "cancel", "welcome:ada"),
    )
    assert (again.code, "have not ended" in again.err) == (1, True)
    assert (cancelled.code, cancelled.out) == (0, "cancelled\n")
    too_late = await surelane("events", "cancel", str(identity))
    assert (too_late.code, "ended as cancelled" in too_late.err) == (1, True)


async def test_events_are_found_by_their_tags(surelane: Command, connection: Connection) -> None:
    identity = await Queue(connection).enqueue("mail", {"text": "hello"})
    await connection.execute("select agent.claim_events(array['mail'], _limit => 1)")
    await Queue(connection).enqueue("mail", {"text": "hello"})
    engine = Engine(connection)
    await engine.store_tags(identity, 1, {"customer": "acme", "order": "17"})
    await engine.store_progress(identity, 1, "3 of 7 files")
    listed, searched, none, wrong, shown = await surelane.each(
        "events list --tag customer=acme --tag order:17 --json",
        "events search hello --tag customer=acme --json",
        "events list --tag customer=other --json",
        "events list --tag customer",
        f"events show {identity}",
    )
    assert [job["id"] for job in (*listed.json, *searched.json)] == [identity, identity]
    assert none.json == []
    assert (wrong.code, "write a tag as customer:acme" in wrong.err) == (2, True)
    assert "customer=acme, order=17" in shown.out
    assert "3 of 7 files" in shown.out


async def test_value_is_sent_to_a_live_event(surelane: Command, connection: Connection) -> None:
    await Queue(connection).enqueue("mail", item_key="paid:1")
    sent, wrong, cancelled, late = await surelane.each(
        'events signal paid:1 paid {"n":1}',
        "events signal paid:1 paid yes",
        "events cancel paid:1 --reason enough",
        "events signal paid:1 paid",
    )
    assert (sent.code, sent.out) == (0, "sent\n")
    assert (wrong.code, "is not JSON" in wrong.err) == (2, True)
    assert cancelled.code == 0
    assert (late.code, "ended as cancelled" in late.err) == (1, True)
    story = (await surelane("events", "history", "paid:1", "--json")).json
    assert ("signalled", "paid") in [(step["what"], step["detail"]) for step in story["steps"]]
    assert story["steps"][-1]["detail"].endswith(": enough")


async def test_ended_event_runs_again_as_a_new_one(
    surelane: Command, connection: Connection, tmp_path: Path
) -> None:
    first = await Queue(connection).enqueue("mail", {"to": "ada"}, item_key="welcome:ada")
    live = await surelane("events", "rerun", "welcome:ada", "--from-step", "deploy")
    assert (live.code, "is pending: cancel it" in live.err) == (1, True)
    await fail(connection, first, "no luck")
    payload, broken = tmp_path / "payload.json", tmp_path / "broken.json"
    payload.write_text('{"to": "bob"}')
    broken.write_text("{")
    done = await surelane("events", "rerun", "welcome:ada", "--payload", str(payload), "--json")
    new = done.json
    (identity,) = new["rerun"]
    key = f"welcome:ada:rerun:{identity}"
    assert new == {"rerun": [identity], "rerun_of": first, "key": key, "kept": []}
    assert (await surelane("events", "show", new["key"], "--json")).json["payload"] == {"to": "bob"}
    for arguments, code, why in (
        (("--payload", str(broken)), 2, "is not JSON"),
        (("--payload", str(tmp_path / "none")), 2, "No such file"),
        (("--from-step", "deploy"), 3, "no stored step deploy; it has none"),
    ):
        refused = await surelane("events", "rerun", "welcome:ada", *arguments)
        assert (refused.code, why in refused.err) == (code, True), refused.err
    two = await surelane("events", "rerun", "welcome:ada", new["key"], "--from-step", "deploy")
    assert (two.code, "give one event" in two.err) == (2, True)
    told = await surelane("events", "rerun", "welcome:ada", "--payload", str(payload))
    assert told.out.startswith(f"event {first} runs again as event ")


async def test_claims_keep_their_numbers_when_the_earliest_are_dropped(
    surelane: Command, connection: Connection
) -> None:
    identity = await Queue(connection).enqueue("mail", item_key="m")
    await connection.execute(
        """do $$ declare _claim int4; _id int8; begin
            for n in 1..103 loop
                select id, claim into _id, _claim from agent.claim_events('{mail}', 1, _claimed_by => 'w');
                perform agent.settle(array[_id], array[_claim], '{release}') from generate_series(1, 1) where n < 103;
            end loop;
        end $$"""
    )
    story = await surelane("events", "history", str(identity), "--json")
    claims = [step for step in story.json["steps"] if step["what"] == "claimed"]
    assert [step["detail"] for step in claims] == [f"claim {number}" for number in range(4, 104)]
    assert [step["by"] for step in claims] == [None] * 99 + ["w"]


async def test_all_that_failed_of_a_kind_is_put_back(surelane: Command, connection: Connection) -> None:
    for number in range(3):
        await fail(connection, await Queue(connection).enqueue("mail", {"n": number}), "no luck")
    assert (await surelane("events", "rerun", "--status", "failed", "--kind", "note")).out == "0 run again\n"
    assert (await surelane("events", "rerun", "--status", "failed", "--kind", "mail")).out.startswith(
        "3 run again: "
    )


async def test_schedules_are_set_listed_and_deleted(surelane: Command) -> None:
    made = await surelane(
        *("cron", "set", "nightly", "mail", "0 3 * * *", "--time-zone", "Europe/Berlin"),
        *("--payload", '{"to": "all"}', "--catch-up", "none"),
    )
    assert (made.code, "nightly fires next at" in made.out) == (0, True)
    table, listed = await surelane.each("cron list", "cron list --json")
    assert "Europe/Berlin" in table.out
    assert [(cron["schedule"], cron["payload"], cron["catch_up"]) for cron in listed.json] == [
        ("0 3 * * *", {"to": "all"}, "none")
    ]
    more = ("--catch-up", "10", "--overlap", "skip", "--jitter", "5m")
    made, wrong = [
        await surelane("cron", "set", "nightly", "tick", "0 3 * * *", *given)
        for given in (more, (*more, "--catch-up", "most"))
    ]
    assert (made.code, wrong.code) == (0, 2)
    (listed,) = (await surelane("cron", "list", "--json")).json
    assert [listed["catch_up"], listed["overlap"], listed["jitter"]] == ["10", "skip", "0:05:00"]
    gone, missing = [await surelane("cron", "delete", "nightly") for _ in range(2)]
    assert (gone.code, missing.code) == (0, 3)


async def test_kinds_are_paused_and_the_figures_say_so(surelane: Command, connection: Connection) -> None:
    queue = Queue(connection)
    await queue.enqueue("mail", item_key="m")
    await Engine(connection).announce_worker("worker-1", ["mail"], "0.1.0")
    assert (await surelane("kinds", "pause", "mail")).out == "mail is paused\n"
    table, figures, why = await surelane.each("stats", "stats --json", "events why m")
    assert "worker-1" in table.out
    assert [(kind["kind"], kind["paused"], kind["pending"]) for kind in figures.json["kinds"]] == [
        ("mail", True, 1)
    ]
    assert why.out == "paused: kind mail is paused\n"
    assert (await surelane("kinds", "resume", "mail")).code == 0


async def test_a_trace_is_named_without_a_database() -> None:
    nowhere = Command(f"postgresql://surelane@127.0.0.1:{free_port()}/nowhere")
    plain = await nowhere("trace", "Ev1")
    linked = await nowhere("trace", "Ev1", SURELANE_TRACE_URL="https://traces.example/{trace_id}")
    assert plain.code == 0
    assert linked.out == f"{plain.out}https://traces.example/{plain.out}"
    assert (await nowhere.process("--version")).out == f"surelane {version('surelane')}\n"


async def test_an_event_that_waits_for_its_children_says_so(
    surelane: Command, connection: Connection
) -> None:
    identity = await Queue(connection).fan_out([Job("part"), Job("part")], Continuation("whole"))
    why, listed = await surelane.each(f"events why {identity}", "events list --status scheduled")
    assert why.out == "waits_for_children: 2 children have not ended\n"
    assert "never" in listed.out


async def test_a_watched_list_is_shown_again(surelane: Command, connection: Connection) -> None:
    process = await surelane.start("events", "list", "--watch")
    assert process.stdout is not None
    async with asyncio.timeout(60):
        assert b"no such events" in await process.stdout.readline()
        await Queue(connection).enqueue("mail")
        while b"mail" not in await process.stdout.readline():
            pass
    process.terminate()
    await process.wait()


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        ("events list --status done", 2, "done is not a status"),
        ("events list --limit 0", 2, "limit"),
        ("events show nothing", 3, "there is no event nothing"),
        ("events history 999", 3, "there is no event 999"),
        ("events rerun", 2, "give events, or --status"),
        ("cron set x mail often", 2, "is not a schedule"),
        ("cron set x mail @daily --payload []", 2, "not a JSON object"),
        ("cron set x mail @daily --catch-up some", 2, "write none, one, all or a number"),
        ("frobnicate", 2, "No such command"),
    ],
)
async def test_a_refused_command_says_why_in_one_line(
    surelane: Command, call: str, code: int, message: str
) -> None:
    done = await surelane(*call.split())
    assert (done.code, message in done.err, "Traceback" in done.err) == (code, True, False), done.err


async def test_a_database_that_is_away_or_has_no_schema_is_reported(
    surelane: Command, empty_database: str, shared_database: str, tmp_path: Path
) -> None:
    away = Command(f"postgresql://surelane@127.0.0.1:{free_port()}/nowhere")
    several = [
        (await away.process("stats"), "cannot reach the database"),
        (await Command(empty_database)("stats"), "surelane_migrations apply"),
        (await Command(as_role(shared_database, "surelane_ingest"))("stats"), "member of agent_operator"),
        (
            await surelane("stats", DATABASE_URL="x", SURELANE_OPERATOR_DATABASE_URL=away.database),
            "cannot reach",
        ),
    ]
    for done, message in several:
        assert (done.code, message in done.err, done.err.count("\n")) == (4, True, 1), done.err
    # A system may run in this directory: look elsewhere for one.
    unnamed = await surelane.process("stats", DATABASE_URL="", SURELANE_DATA_DIR=str(tmp_path))
    assert (unnamed.code, "no database is named" in unnamed.err) == (2, True), unnamed.err
    assert (await surelane.process("stats", "--json")).json["workers"] == []


async def test_a_person_enqueues_once_and_finds_the_job_by_its_key(surelane: Command) -> None:
    first = await surelane("enqueue", "agent-turn", "--payload", '{"n": 1}', "--key", "greeting:ada")
    again = await surelane("enqueue", "agent-turn", "--key", "greeting:ada")
    found = await surelane("events", "show", "greeting:ada", "--json")

    assert first.code == again.code == 0
    assert first.out == again.out
    assert (found.json["id"], found.json["payload"]) == (int(first.out), {"n": 1})
    assert (await surelane("enqueue", "agent-turn", "--payload", "{")).code == 2


async def test_a_person_starts_an_orchestration(surelane: Command) -> None:
    started = await surelane("orchestrate", "a report", "--subtask", "read", "--subtask", "write")
    found = await surelane("events", "show", started.out.strip(), "--json")

    assert found.json["kind"] == "orchestrator-plan"
    assert found.json["payload"] == {"goal": "a report", "subtasks": ["read", "write"]}


async def test_changes_are_kept_under_the_users_name_or_the_given_one(
    surelane: Command, connection: Connection
) -> None:
    identity = await Queue(connection).enqueue("job")
    await surelane("events", "cancel", str(identity))
    await surelane("--as", "ada", "kinds", "pause", "job")
    await surelane("kinds", "resume", "job", SURELANE_AS="grace")
    kept = (await surelane("actions", "--json")).json
    assert [(each["who"], each["via"], each["action"], each["target"]) for each in kept[:3]] == [
        ("grace", "command", "resume", "kind job"),
        ("ada", "command", "pause", "kind job"),
        (this_user(), "command", "cancel", f"event {identity}"),
    ]
    listed = await surelane("actions", "--target", f"event {identity}")
    assert listed.code == 0
    assert len(listed.out.splitlines()) == 2


async def test_a_command_asks_several_installations_and_tells_which_one_is_away(
    surelane: Command, connection: Connection
) -> None:
    await Queue(connection).enqueue("mail", {})
    here = surelane.database
    shards = f"alpha={here} beta=postgresql://127.0.0.1:9/away  gamma={here}"
    every = await surelane.process("--shard", "all", "stats", "--json", SURELANE_SHARDS=shards)
    assert every.code == 4
    said = [line for line in every.err.splitlines() if line.startswith(("==", "surelane: cannot reach"))]
    assert [line[:22] for line in said] == ["== alpha", "== beta", "surelane: cannot reach", "== gamma"]
    told, decoder = every.out, json.JSONDecoder()
    first, end = decoder.raw_decode(told)
    second, _ = decoder.raw_decode(told[end:].lstrip())
    assert [row["kind"] for row in first["kinds"]] == [row["kind"] for row in second["kinds"]] == ["mail"]
    one = await surelane.process(
        "--as", "ada", "--shard=gamma", "kinds", "pause", "mail", SURELANE_SHARDS=shards
    )
    assert one.code == 0, one.err
    assert (
        await connection.fetchval("select who from agent.operator_action order by id desc limit 1") == "ada"
    )
    wrong = await surelane.process("--shard", "delta", "stats", SURELANE_SHARDS=shards)
    assert wrong.code == 2
    assert "SURELANE_SHARDS names alpha, beta, gamma" in wrong.err
