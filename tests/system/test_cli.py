"""The operator's command ``surelane`` prints tables and JSON, and ends with the documented exit codes."""

import asyncio
import json
import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest
from typer.testing import CliRunner

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.audit import this_user
from surelane_operator.cli.command import app
from surelane_service.service_settings import DEVELOPMENT_URL
from tests.databases import as_role
from tests.processes import free_port
from tests.system.operators import emptied, fail


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

    def refused(self, code: int, why: str) -> bool:
        return (self.code, why in self.err, "Traceback" in self.err) == (code, True, False)


@dataclass(frozen=True)
class Command:
    """The command, on a database. It runs in this process: to start another takes longer than all the rest."""

    database: str

    async def __call__(self, *arguments: str, **env: str) -> Done:
        chosen = {"COLUMNS": "200", "SURELANE_OPERATOR_DATABASE_URL": self.database, **env}
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=chosen)
        return Done(result.exit_code, result.stdout, result.stderr)

    async def each(self, *calls: str) -> list[Done]:
        """Run several commands, given as lines without quoting."""
        return [await self(*call.split()) for call in calls]


connection = emptied


@pytest.fixture
def surelane(shared_database: str, connection: Connection) -> Command:  # noqa: ARG001 - an empty queue
    """Return the command, as a member of ``agent_operator``."""
    return Command(as_role(shared_database, "surelane_operator"))


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
    assert (table.code, "mailbox [full]" in table.out, "welcome:bob" in table.out) == (0, True, False)
    assert [job["id"] for job in listed.json] == [identity]
    assert (shown.json["payload"], shown.json["status"]) == ({"to": "ada"}, "failed")
    assert why.json["reason"] == "ended"
    assert [step["what"] for step in story.json["steps"]][-2:] == ["claimed", "failed"]
    assert ("blog" in history.out, story.json["trace"] in history.out) == (True, True)
    rerun, again, cancelled, too_late = await surelane.each(
        "events rerun welcome:ada",
        "events rerun welcome:ada",
        "events cancel welcome:ada",
        f"events cancel {identity}",
    )
    assert (rerun.code, rerun.out) == (0, f"1 run again: {identity}\n")
    assert again.refused(1, "have not ended")
    assert (cancelled.code, cancelled.out) == (0, "cancelled\n")
    assert too_late.refused(1, "ended as cancelled")
    for number in range(3):
        await fail(connection, await queue.enqueue("note", {"n": number}), "no luck")
    none, three = await surelane.each(
        "events rerun --status failed --kind mail", "events rerun --status failed --kind note"
    )
    assert none.out == "0 run again\n"
    assert three.out.startswith("3 run again: ")


async def test_ended_event_runs_again_as_a_new_one(
    surelane: Command, connection: Connection, tmp_path: Path
) -> None:
    first = await Queue(connection).enqueue("mail", {"to": "ada"}, item_key="welcome:ada")
    live = await surelane("events", "rerun", "welcome:ada", "--from-step", "deploy")
    assert live.refused(1, "is pending: cancel it")
    await fail(connection, first, "no luck")
    payload, broken = tmp_path / "payload.json", tmp_path / "broken.json"
    payload.write_text('{"to": "bob"}')
    broken.write_text("{")
    told = await surelane("events", "rerun", "welcome:ada", "--payload", str(payload))
    assert told.out.startswith(f"event {first} runs again as event ")
    new = await surelane("events", "list", "--status", "pending", "--json")
    assert (await surelane("events", "show", new.json[0]["item_key"], "--json")).json["payload"] == {
        "to": "bob"
    }
    for arguments, code, why in (
        (("--payload", str(broken)), 2, "is not JSON"),
        (("--payload", str(tmp_path / "none")), 2, "No such file"),
        (("--from-step", "deploy"), 3, "no stored step deploy; it has none"),
    ):
        refused = await surelane("events", "rerun", "welcome:ada", *arguments)
        assert refused.refused(code, why), refused
    two = await surelane("events", "rerun", "welcome:ada", "other", "--from-step", "deploy")
    assert two.refused(2, "give one event")


async def test_a_schedule_is_set_with_all_its_rules(surelane: Command) -> None:
    made = await surelane(
        *("cron", "set", "nightly", "mail", "0 3 * * *", "--time-zone", "Europe/Berlin", "--payload"),
        *('{"to": "all"}', "--catch-up", "10", "--overlap", "skip", "--jitter", "5m"),
    )
    assert (made.code, "nightly fires next at" in made.out) == (0, True)
    (cron,) = (await surelane("cron", "list", "--json")).json
    expected: dict[str, object] = {
        "schedule": "0 3 * * *",
        "payload": {"to": "all"},
        "time_zone": "Europe/Berlin",
    }
    expected |= {"catch_up": "10", "overlap": "skip", "jitter": 300}
    assert {name: cron[name] for name in expected} == expected
    assert [(await surelane("cron", "delete", "nightly")).code for _ in range(2)] == [0, 3]


async def test_a_trace_is_named_without_a_database() -> None:
    nowhere = Command(f"postgresql://surelane@127.0.0.1:{free_port()}/nowhere")
    plain, shown = await nowhere.each("trace Ev1", "--version")
    linked = await nowhere("trace", "Ev1", SURELANE_TRACE_URL="https://traces.example/{trace_id}")
    assert plain.code == 0
    assert linked.out == f"{plain.out}https://traces.example/{plain.out}"
    assert shown.out == f"surelane {version('surelane')}\n"


async def test_a_number_that_python_does_not_read_is_shown_as_text(
    surelane: Command, connection: Connection
) -> None:
    payload = "{" + f'"n": {"9" * 4400}, "beside": 1' + "}"
    await connection.execute("select agent.enqueue('count', $1, _item_key => 'long')", payload)
    shown, listed = await surelane.each("events show long --json", "events list --json")
    assert shown.json["payload"] == {"n": "9" * 4400, "beside": 1}
    assert (shown.code, listed.code) == (0, 0)


async def test_a_watched_list_is_shown_again(
    surelane: Command, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > 1:
            raise KeyboardInterrupt
        asyncio.run_coroutine_threadsafe(Queue(connection).enqueue("mail"), loop).result()

    loop = asyncio.get_running_loop()
    monkeypatch.setattr("surelane_operator.cli.output.time", SimpleNamespace(sleep=pause))
    done = await surelane("events", "list", "--watch")
    first, *_, last = done.out.splitlines()
    assert (done.code, first, "mail" in last, pauses) == (130, "no such events", True, [2, 2])


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        ("events list --status done", 2, "status.0: Input should be 'pending'"),
        ("events list --limit 0", 2, "limit"),
        ("events list --tag customer", 2, "write a tag as customer:acme"),
        ("events show nothing", 3, "there is no event nothing"),
        ("events history 999", 3, "there is no event 999"),
        ("events rerun", 2, "give events, or --status"),
        ("cron set x mail often", 2, "is not a schedule"),
        ("cron set x mail @daily --payload []", 2, "payload: Input should be"),
        ("cron set x mail @daily --catch-up some", 2, "catch_up: "),
        ("frobnicate", 2, "No such command"),
        ("erase", 2, "give --user, --team or --channel"),
        ("erase --user U7 --yes --dry-run", 2, "not both"),
        ("erase --user U%", 1, "letters and digits"),
    ],
)
async def test_a_refused_command_says_why_in_one_line(
    surelane: Command, call: str, code: int, message: str
) -> None:
    assert (await surelane(*call.split())).refused(code, message)


async def test_a_database_that_is_away_or_has_no_schema_is_reported(
    surelane: Command, empty_database: str, shared_database: str, tmp_path: Path
) -> None:
    away = Command(f"postgresql://surelane@127.0.0.1:{free_port()}/nowhere")
    for done, message in (
        (await away("stats"), "cannot reach the database"),
        (await away("doctor"), "cannot reach the database"),
        (await away("stats", DATABASE_URL=surelane.database), "cannot reach the database"),
        (await Command(empty_database)("stats"), "surelane_migrations apply"),
        (await Command(as_role(shared_database, "surelane_ingest"))("stats"), "member of agent_operator"),
    ):
        assert done.refused(4, message), done
        assert done.err.count("\n") == 1
    assert (await away("limits", "set", "mail", "--rate", "fast")).refused(2, "rate: "), "it did not connect"
    # A system may run in this directory: look elsewhere for one.
    unnamed = {"DATABASE_URL": "", "SURELANE_DATA_DIR": str(tmp_path)}
    assert (await Command("")("stats", **unnamed)).refused(2, "no database is named")
    told = tmp_path / DEVELOPMENT_URL
    told.write_text(surelane.database)
    assert (await Command("")("stats", "--json", **unnamed)).json["workers"] == []
    if not os.getuid():  # another user's file, in a directory that both may use
        os.chown(told, 1, 1)
        assert (await Command("")("stats", **unnamed)).refused(2, "no database is named")
    named = await Command("")("stats", "--json", DATABASE_URL=surelane.database)
    assert named.json["workers"] == []


OLDER = """
create schema agent;
create function agent.queue_stats() returns table (kind text) language sql as $$ select 'mail'::text $$;
create function agent.list_workers() returns table (name text) language sql as $$ select 'w1'::text $$
"""


async def test_a_schema_of_another_release_is_reported(empty_database: str) -> None:
    connection = await asyncpg.connect(empty_database)
    await connection.execute(OLDER)
    await connection.close()
    done = await Command(empty_database)("stats")
    assert done.refused(4, "no schema of this release; run: python -m surelane_migrations apply"), done
    assert done.err.count("\n") == 1


async def test_a_person_enqueues_once_finds_the_job_by_its_key_and_starts_an_orchestration(
    surelane: Command,
) -> None:
    first = await surelane("enqueue", "agent-turn", "--payload", '{"n": 1}', "--key", "greeting:ada")
    again, shown, wrong = await surelane.each(
        "enqueue agent-turn --key greeting:ada",
        "events show greeting:ada --json",
        "enqueue agent-turn --payload {",
    )
    assert (first.code, first.out, again.code, wrong.code) == (0, again.out, 0, 2)
    assert (shown.json["id"], shown.json["payload"]) == (int(first.out), {"n": 1})
    started = await surelane("orchestrate", "a report", "--subtask", "read", "--subtask", "write")
    plan = (await surelane("events", "show", started.out.strip(), "--json")).json
    assert plan["kind"] == "orchestrator-plan"
    assert plan["payload"] == {"goal": "a report", "subtasks": ["read", "write"]}


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
