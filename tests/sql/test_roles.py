"""Each role has its rights and no others, and no object in schema public is used."""

import json
import os
import re
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from surelane import Continuation, Job, Queue
from surelane.calls import Connection
from tests.sql.conftest import Connect
from tests.sql.migrations import connected
from tests.sql.queue_steps import claim, claim_one, complete, enqueue, envelope, insert, only_row, pair

ROOT = Path(__file__).parents[2]
ROLES = ("ingest", "producer", "worker", "operator")
NEXT_YEAR = datetime.now(UTC) + timedelta(days=365)
INSTALLING = {
    "save_installation",
    "find_installation",
    "delete_installation",
    "use_oauth_state",
    "uninstall",
    "end_refresh",
}
"""What reads and writes the tokens of installations: for ingest and workers."""
REFRESHING = {"begin_refresh", "expiring_installations", "add_account"}
"""What refreshes tokens: for workers."""
ROTATING = {
    "installations_to_seal",
    "seal_installation",
    "data_keys_to_seal",
    "seal_data_key",
    "leave_data_key",
}
"""What seals stored secrets with another key: for operators."""
READING_KEYS = {"data_key", "find_data_keys"}
"""What reads the sealed data keys."""
SEALING = READING_KEYS | {"add_data_key"}
"""What gives a service the sealed data keys, and makes them."""
INGEST_MAY = (
    INSTALLING
    | SEALING
    | {"insert_event", "insert_events", "insert_requests", "fire_trigger", "takes_events"}
)
INGEST_MAY |= {
    "answer_dispatch",
    "announce_sockets",
    "note_dropped",
    "measure_queue",
    "note_report",
    "own_timeline",
}
INGEST_MAY |= {"schema_version", "wake_connected", "take_answers"}

PRODUCER_MAY = READING_KEYS | {"enqueue", "enqueue_jobs", "fan_out", "finish_step", "signal"}
OPERATOR_MAY = {"list_jobs", "rerun_events", "rerun_as_new", "pause_kind", "drain_worker", "begin_erasure"}
OPERATOR_MAY |= {"retire_data_key", "use_id"}
"""What operators may do and workers may not."""


async def callable_by(queue: Connection, role: str) -> set[str]:
    rows = await queue.fetch(
        "select proname from pg_proc where pronamespace = 'agent'::regnamespace"
        " and has_function_privilege($1, oid, 'execute')",
        role,
    )
    return {row["proname"] for row in rows}


async def test_each_role_executes_its_functions_alone(queue: Connection) -> None:
    assert await callable_by(queue, "surelane_ingest") == INGEST_MAY
    assert await callable_by(queue, "agent_producer") == PRODUCER_MAY
    assert await callable_by(queue, "surelane_worker") == await callable_by(queue, "agent_worker")
    workers, operators = await callable_by(queue, "agent_worker"), await callable_by(queue, "agent_operator")
    assert workers & (OPERATOR_MAY | {"queue_figures", "vacuum_holder", "count_heads"}) == set()
    tokens = INSTALLING | REFRESHING | ROTATING
    assert (workers & tokens, operators & tokens) == (INSTALLING | REFRESHING, ROTATING)
    assert operators >= OPERATOR_MAY | {"cancel_event", "resume_kind", "queue_stats", "reschedule_event"}
    claiming = {"claim_event", "claim_events", "complete_events", "delete_event"}
    assert operators & (claiming | {"insert_event"}) == set()
    assert workers >= claiming | {"enqueue", "settle", "extend_leases"}
    inner = {"promote", "reelect", "hold_claims", "hold_group", "hold_groups", "end_events", "archive_events"}
    for role in ("ingest", "worker", "operator", "producer"):
        assert await callable_by(queue, f"agent_{role}") & (inner | {"add_event", "store_event"}) == set()
    assert await callable_by(queue, "public") == set()


async def test_the_page_of_security_has_the_grants_and_every_open_function(queue: Connection) -> None:
    page = (ROOT / "docs/security.md").read_text()
    grants, proofs = (re.findall(r"^\| (.+)$", part, re.MULTILINE)[1:] for part in page.split("## ")[1:3])
    callers = {role: await callable_by(queue, f"agent_{role}") for role in ROLES}
    granted: dict[str, set[str]] = defaultdict(set)
    for name in set().union(*callers.values()):
        granted[", ".join(role for role in ROLES if name in callers[role])].add(name)
    shown = {roles: ", ".join(f"`{name}`" for name in sorted(names)) for roles, names in granted.items()}
    rows = sorted(f"{roles} | {names} |" for roles, names in shown.items())
    if os.environ.get("SURELANE_RECORD"):
        before, after = ("".join(f"| {each}\n" for each in part) for part in (grants, rows))
        (ROOT / "docs/security.md").write_text(page.replace(before, after))
        return
    assert sorted(grants) == rows, "if that is intended, run this test with SURELANE_RECORD=1"
    proved = {name for row in proofs for name in re.findall("`(\\w+)`", row.partition("|")[0])}
    assert proved == callers["ingest"] | callers["producer"]


async def test_operators_read_tables_and_no_role_has_another_right_to_one(queue: Connection) -> None:
    roles = [f"surelane_{name}" for name in ("ingest", "worker", "producer", "operator")]
    rights = await queue.fetch(
        "select distinct role, may from pg_class, unnest($1::name[]) as role, unnest($2::text[]) as may"
        " where relnamespace = 'agent'::regnamespace and relkind in ('r', 'p', 'v', 'm', 'f')"
        " and (has_table_privilege(role, oid, may)"
        " or may <> all('{delete,truncate,trigger}') and has_any_column_privilege(role, oid, may))",
        roles,
        ["select", "insert", "update", "delete", "truncate", "references", "trigger"],
    )
    assert [tuple(row) for row in rights] == [("surelane_operator", "select")]
    open_tables = await queue.fetch(
        "select relname from pg_class cross join aclexplode(relacl) as grants"
        " where relnamespace = 'agent'::regnamespace and grants.grantee = 0"
    )
    assert open_tables == []
    assert not await queue.fetchval("select has_schema_privilege('public', 'agent', 'usage')")
    makers = "select bool_or(has_schema_privilege(role, 'agent', 'create')) from unnest($1::name[]) as role"
    assert not await queue.fetchval(makers, roles)


async def test_a_producer_enqueues_and_signals(queue: Connection, connect: Connect) -> None:
    producer = await connect("surelane_producer")
    await producer.execute("set surelane.acting = 'UBOSS'")
    identity = await enqueue(producer, item_key="i")
    assert await producer.fetchval("select agent.signal('i', 'go')") == "sent"
    assert await producer.fetchval("select agent.signal($1, 'go')", str(identity)) == "sent"
    signed = await queue.fetch("select sent_by from agent.signal")
    assert {row["sent_by"] for row in signed} == {"surelane_producer"}, "under its own name"
    client = Queue(producer)
    await client.enqueue_many([Job("job", {"n": 1}, priority=0), Job("job")])
    await client.fan_out([Job("job")], Continuation("then"))
    assert (
        await queue.fetchval("select count(*) from agent.event where enqueued_by = 'surelane_producer'") == 5
    )


AS_A_PERSON = [
    "select agent.enqueue('surelane.answer', '{}')",
    "select agent.enqueue('slack.block_actions', '{}', 1)",
    'select * from agent.enqueue_jobs(\'[{"kind": "slack.app_mention"}]\')',
    'select agent.fan_out(\'[{"kind": "slack.app_mention"}]\', \'{"kind": "job"}\')',
    "select agent.fan_out('[]', '{\"kind\": \"surelane.answer\"}')",
    "select agent.enqueue('job', '{}', _item_key => 'Ev1', _on_duplicate => 'replace')",
    "select agent.enqueue('job', '{}', _item_key => 'Ev1', _on_duplicate => 'earliest')",
]
REFUSED = (
    *(asyncpg.InsufficientPrivilegeError, asyncpg.InvalidParameterValueError),
    asyncpg.UniqueViolationError,  # the key is one of another kind
)


@pytest.mark.parametrize(
    "statement",
    [*AS_A_PERSON, """select agent.signal('i', 'deploy:1', '{"choice": "Approve", "user": "UBOSS"}')"""],
)
async def test_a_producer_never_acts_as_a_person(queue: Connection, connect: Connect, statement: str) -> None:
    await insert(queue, envelope("Ev1"))
    await enqueue(queue, item_key="i")
    before = await queue.fetch("select e::text from agent.event as e order by e.id")
    with pytest.raises(REFUSED, match=r"person|slack\.app_mention"):
        await (await connect("surelane_producer")).execute(statement)
    assert await queue.fetch("select e::text from agent.event as e order by e.id") == before
    assert await queue.fetch("select from agent.signal") == []


PAY = "'pay', '{\"n\": 1}', _item_key => 'salaries', _dedupe_key => 'd'"
OTHERS = {
    "ends a workflow": """select agent.fan_out('[{"kind": "forged"}]', '{"kind": "forged"}', $1)""",
    "replaces a job": f"select agent.enqueue({PAY}, _on_duplicate => 'replace')",
    "replaces it for payroll": f"select agent.enqueue({PAY}, _enqueued_by => 'payroll', _on_duplicate => 'replace')",
    "moves a job": """select * from agent.enqueue_jobs('[{"kind": "pay", "dedupe_key": "d"}]', 'earliest')""",
    "is a webhook": """select agent.enqueue('trigger-fire', '{"trigger": "git"}')""",
    "is a webhook in a batch": """select * from agent.enqueue_jobs('[{"kind": "trigger-fire"}]')""",
    "finishes a step": "select agent.finish_step($1, 1, 'a', 1, 'guessed', '1', null, '1', 0)",
}
"""What a program may try with an event of another role, whose id is $1."""


@pytest.mark.parametrize("deed", OTHERS)
async def test_a_producer_changes_no_event_of_others(queue: Connection, connect: Connect, deed: str) -> None:
    identity = await enqueue(
        queue, "pay", enqueued_by="payroll", item_key="salaries", dedupe_key="d", run_at=NEXT_YEAR
    )
    before = await queue.fetch("select e::text from agent.event as e order by e.id")
    producer = await connect("surelane_producer")
    with suppress(asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError):
        answer = await producer.fetchval(OTHERS[deed].replace("$1", str(identity)))
        assert answer in {"stale", "ended"}
    for key in (str(identity), "salaries"):
        assert await producer.fetchval("select agent.signal($1, 'go')", key) is None
    assert await queue.fetch("select e::text from agent.event as e order by e.id") == before
    assert await queue.fetch("select from agent.signal") == []


async def test_a_producer_replaces_its_own_jobs_and_signals_by_keys(
    queue: Connection, connect: Connect
) -> None:
    producer = await connect("surelane_producer")
    for turn in range(2):
        identity = await enqueue(
            producer, "pay", payload=f"{turn}", enqueued_by="me", item_key="i", on_duplicate="replace"
        )
    row = await only_row(queue, "select event, enqueued_by from agent.event where id = $1", identity)
    assert tuple(row) == ("1", "surelane_producer: me")
    event = await insert(queue, envelope("Ev1"))
    assert await producer.fetchval("select agent.signal('Ev1', 'paid')") == "sent"
    assert await producer.fetchval("select agent.signal($1, 'paid')", str(event)) is None, (
        "ids can be guessed"
    )


ENQUEUE_KEYS = """select agent.enqueue('job', _item_key => $1::jsonb ->> 'item_key'
    , _group_key => $1 ->> 'group_key', _dedupe_key => $1 ->> 'dedupe_key')"""
KEPT = [
    {"item_key": "cron:nightly:2024-01-01T00:00:00Z"},
    {"item_key": "webhook:u:1"},
    {"item_key": "event:cron:nightly:2024-01-01T00:00:00Z"},
    {"item_key": "Ev0123456789"},
    {"item_key": "trigger:" + 64 * "0"},
    {"item_key": "a:rerun:7"},
    {"group_key": "cron:nightly"},
    {"dedupe_key": "mention:T1:C1:1700000000.000100"},
]


@pytest.mark.parametrize("key", ["mention:T1:C1:1700000000.000100", "message:C1:1700000000.000100"])
@pytest.mark.parametrize("name", ["item_key", "dedupe_key"])
async def test_no_program_takes_the_address_of_a_message(connect: Connect, name: str, key: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match="is kept for schedules"):
        await (await connect("surelane_producer")).execute(
            "select * from agent.enqueue_jobs($1)", json.dumps([{"kind": "job", name: key}])
        )


@pytest.mark.parametrize("role", ["surelane_producer", "surelane_worker", "surelane_operator"])
@pytest.mark.parametrize("keys", KEPT, ids=str)
async def test_no_one_takes_a_key_of_the_system(
    queue: Connection, connect: Connect, keys: dict[str, str], role: str
) -> None:
    job = json.dumps({"kind": "job", **keys})
    ways = [
        ("select * from agent.enqueue_jobs($1)", f"[{job}]"),
        (ENQUEUE_KEYS, job),
    ]
    if role != "surelane_operator":
        ways.append(('select agent.fan_out($1, \'{"kind": "then"}\')', f"[{job}]"))
        ways.append(("select agent.fan_out('[]', $1)", job))
    for statement, given in ways:
        with pytest.raises(asyncpg.InvalidParameterValueError, match="is kept for schedules"):
            await (await connect(role)).execute(statement, given)
    await queue.execute(
        "select agent.set_cron('nightly', 'tick', '0 0 * * *', '2024-01-01', _overlap => 'skip');"
        " select agent.fire_cron('nightly', '2024-01-01', '{2024-01-01}', '2100-01-01')"
    )
    assert await queue.fetchval("select count(*) from agent.event where kind = 'tick'") == 1


@pytest.mark.parametrize("role", ["surelane_producer", "surelane_worker", "surelane_operator", None])
async def test_no_program_stores_a_job_that_edits_or_is_a_hooks(connect: Connect, role: str | None) -> None:
    for kind in ("surelane.close", "surelane.failed:job"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="end of an event alone"):
            await (await connect(role)).execute("select agent.enqueue($1, '{}')", kind)


async def test_a_worker_acts_for_people_and_answers_questions(queue: Connection, connect: Connect) -> None:
    worker = await connect("surelane_worker")
    identity = await enqueue(worker, "slack.app_mention", item_key="i")
    assert await queue.fetchval("select kind from agent.event") == "slack.app_mention"
    sent = "select answer from agent.send_signal($1, 'deploy:1', '{}', true, 'U1')"
    assert await worker.fetchval(sent, identity) == "sent"
    for statement in AS_A_PERSON[:3]:
        await worker.execute(statement)


async def test_an_operator_signals_but_answers_no_question(queue: Connection, connect: Connect) -> None:
    operator, identity = await connect("surelane_operator"), await enqueue(queue)
    for view in ("job", "schedule_queue"):
        assert len(await operator.fetch(f"select * from agent.{view}")) == 1
    assert await operator.fetchval("select agent.signal_event($1, 'paid', '1')", identity) == "sent"
    assert await operator.fetchval("select agent.signal_event($1, 'paid', '1')", identity + 1) is None
    for statement in (
        "select agent.signal_event($1, 'deploy:1', '{}')",
        "select * from agent.send_signal($1, 'deploy:1', '{}', false, 'UBOSS')",
    ):
        with pytest.raises(REFUSED):
            await operator.execute(statement, identity)


async def test_who_acted_is_the_session_not_the_functions_owner(queue: Connection, connect: Connect) -> None:
    worker = await connect("surelane_worker")
    identity = await enqueue(worker, item_key="i")
    await worker.execute("select agent.cancel_event('i')")
    row = await only_row(
        queue, "select enqueued_by, finished_by, reason from agent.event_hist where id = $1", identity
    )
    assert tuple(row) == ("surelane_worker", "surelane_worker", "cancelled by surelane_worker")


HOSTILE = """
create schema hostile;
create function hostile.clock_timestamp() returns timestamptz language plpgsql as $$ begin raise 'hostile'; end $$;
create function hostile.random() returns float8 language plpgsql as $$ begin raise 'hostile'; end $$;
create function hostile.mul(float8, int4) returns float8 language plpgsql as $$ begin raise 'hostile'; end $$;
create operator hostile.* (leftarg = float8, rightarg = int4, function = hostile.mul);
create function hostile.cardinality(int8[]) returns int4 language plpgsql as $$ begin raise 'hostile'; end $$;
create function hostile.same(text, text) returns bool language plpgsql as $$ begin raise 'hostile'; end $$;
create operator hostile.= (leftarg = text, rightarg = text, function = hostile.same);
grant usage on schema hostile to public;
"""


async def test_a_callers_search_path_brings_nothing_in(database: str) -> None:
    """Functions and operators before PostgreSQL's own in the path do not run with the owner's rights."""
    async with connected(database) as queue:
        await queue.execute(HOSTILE)
        await queue.execute("set search_path = hostile, pg_catalog")
        with pytest.raises(asyncpg.RaiseError, match="hostile"):
            await queue.fetchval("select clock_timestamp()")
        await insert(queue, envelope("Ev1", channel="C1", ts="1.1"))
        await insert(queue, envelope("Ev2", channel="C1", ts="1.2", thread_ts="1.1"))
        await enqueue(queue, dedupe_key="k", item_key="i", group_key="g")
        rows = await claim(queue, "slack.app_mention", "job")
        assert len(rows) == 3
        assert await complete(queue, *map(pair, rows[:2])) == ["done", "done"]
        await queue.execute("select agent.delete_event($1)", rows[2]["id"])
        await queue.execute("select agent.delete_expired_events()")
        await queue.execute("insert into agent.event (event_ts, event) values (pg_catalog.now(), '{}')")
        assert await claim_one(queue) is not None
