"""Each role has its rights and no others, and no object in schema public is used."""

import asyncpg
import pytest

from surelane import Continuation, Job, Queue
from surelane.calls import Connection
from tests.sql.conftest import Connect
from tests.sql.queue_steps import claim, claim_one, complete, enqueue, envelope, insert, pair

INSTALLING = {
    "save_installation",
    "find_installation",
    "delete_installation",
    "use_oauth_state",
    "uninstall",
}
"""What reads and writes the tokens of installations: for ingest and workers."""
REFRESHING = {"begin_refresh", "end_refresh", "expiring_installations"}
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
    | {
        "insert_event",
        "insert_events",
        "insert_requests",
        "fire_trigger",
        "answer_dispatch",
        "measure_queue",
        "note_report",
        "own_timeline",
        "schema_version",
        "wake_connected",
        "take_answers",
    }
)


@pytest.fixture
async def operator(connect: Connect) -> Connection:
    return await connect("surelane_operator")


async def callable_by(queue: Connection, role: str) -> set[str]:
    """Return the names of our functions that a role may execute."""
    rows = await queue.fetch(
        "select proname from pg_proc where pronamespace = 'agent'::regnamespace"
        " and has_function_privilege($1, oid, 'execute')",
        role,
    )
    return {row["proname"] for row in rows}


async def test_ingest_stores_events_and_reads_version_and_figures_and_nothing_else(
    queue: Connection, connect: Connect
) -> None:
    assert await callable_by(queue, "surelane_ingest") == INGEST_MAY
    ingest = await connect("surelane_ingest")
    identity = await insert(ingest, envelope("Ev1"))
    assert await insert(ingest, envelope("Ev1")) == identity
    assert (await ingest.fetchrow("select * from agent.schema_version()")) is not None


@pytest.mark.parametrize(
    "statement",
    [
        "select * from agent.event",
        "select * from agent.event_hist",
        "select * from agent.job",
        "select * from agent.kind",
        "select * from agent.version",
        "insert into agent.event (event_ts, event) values (now(), '{}')",
        "delete from agent.event",
        "truncate agent.event",
        "select * from agent.claim_event()",
        "select agent.delete_event(1)",
        "select agent.delete_expired_events()",
        "select agent.enqueue('job')",
        "select agent.cancel_event('i')",
        "select agent.rerun_events('{1}')",
        "select agent.pause_kind('job')",
        "select agent.drop_history('1 day')",
        "select agent.promote('g')",
        "select agent.archive_events('{1}', 'completed')",
        "create table agent.mine ()",
        "create function agent.clock() returns int return 1",
    ],
)
async def test_ingest_may_do_nothing_more(queue: Connection, connect: Connect, statement: str) -> None:
    await enqueue(queue)
    ingest = await connect("surelane_ingest")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await ingest.execute(statement)


async def test_a_worker_claims_settles_and_enqueues_without_touching_a_table(
    queue: Connection, connect: Connect
) -> None:
    await insert(queue, envelope("Ev1"))
    worker = await connect("surelane_worker")
    (row,) = await claim(worker, "slack.app_mention")
    assert await complete(worker, pair(row)) == ["done"]
    await enqueue(worker)
    claimed = await claim_one(worker)
    assert claimed is not None
    await worker.execute("select agent.delete_event($1)", claimed["id"])
    for statement in (
        "select * from agent.event",
        "delete from agent.event_hist",
        "update agent.kind set paused = true",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await worker.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "select * from agent.job",
        "select * from agent.list_jobs(null, null, null, null, null, null, null, 20)",
        "select agent.rerun_events('{1}')",
        "select agent.rerun_as_new(1, null, null)",
        "select agent.pause_kind('job')",
        "select agent.drain_worker('w', true)",
        "select agent.retire_data_key('T1')",
        "select agent.begin_erasure('{}', 'somebody')",
    ],
)
async def test_a_worker_is_no_operator(queue: Connection, connect: Connect, statement: str) -> None:
    assert await callable_by(queue, "surelane_worker") == await callable_by(queue, "agent_worker")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await (await connect("surelane_worker")).execute(statement)


async def test_a_producer_enqueues_and_signals(queue: Connection, connect: Connect) -> None:
    assert await callable_by(queue, "agent_producer") == READING_KEYS | {
        "enqueue",
        "enqueue_jobs",
        "fan_out",
        "finish_step",
        "signal",
    }
    producer = await connect("surelane_producer")
    identity = await enqueue(producer, item_key="i")
    assert await producer.fetchval("select agent.signal('i', 'go')") == "sent"
    assert await producer.fetchval("select agent.signal($1, 'go')", str(identity)) == "sent"
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
REFUSED = (asyncpg.InsufficientPrivilegeError, asyncpg.InvalidParameterValueError)


@pytest.mark.parametrize(
    "statement",
    [*AS_A_PERSON, """select agent.signal('i', 'deploy:1', '{"choice": "Approve", "user": "UBOSS"}')"""],
)
async def test_a_producer_does_nothing_in_a_persons_name(
    queue: Connection, connect: Connect, statement: str
) -> None:
    await insert(queue, envelope("Ev1"))
    await enqueue(queue, item_key="i")
    before = await queue.fetch("select e::text from agent.event as e order by e.id")
    with pytest.raises(REFUSED, match="person"):
        await (await connect("surelane_producer")).execute(statement)
    assert await queue.fetch("select e::text from agent.event as e order by e.id") == before
    assert await queue.fetch("select from agent.signal") == []


@pytest.mark.parametrize("role", ["surelane_producer", "surelane_worker", None])
async def test_no_program_stores_a_job_that_edits_what_the_bot_said(
    connect: Connect, role: str | None
) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="end of an event alone"):
        await (await connect(role)).execute("select agent.enqueue('surelane.close', '{}')")


async def test_a_worker_enqueues_what_people_did_and_answers_questions(
    queue: Connection, connect: Connect
) -> None:
    worker = await connect("surelane_worker")
    identity = await enqueue(worker, "slack.app_mention", item_key="i")
    assert await queue.fetchval("select kind from agent.event") == "slack.app_mention"
    sent = "select answer from agent.send_signal($1, 'deploy:1', '{}', true, 'U1')"
    assert await worker.fetchval(sent, identity) == "sent"
    for statement in AS_A_PERSON[:3]:
        await worker.execute(statement)


async def test_an_operator_signals_programs_waits_and_answers_no_question(
    queue: Connection, operator: Connection
) -> None:
    identity = await enqueue(queue)
    assert await operator.fetchval("select agent.signal_event($1, 'paid', '1')", identity) == "sent"
    assert await operator.fetchval("select agent.signal_event($1, 'paid', '1')", identity + 1) is None
    for statement in (
        "select agent.signal_event($1, 'deploy:1', '{}')",
        "select * from agent.send_signal($1, 'deploy:1', '{}', false, 'UBOSS')",
    ):
        with pytest.raises(REFUSED):
            await operator.execute(statement, identity)


async def test_a_producer_signals_under_its_own_name(queue: Connection, connect: Connect) -> None:
    identity = await enqueue(queue)
    producer = await connect("surelane_producer")
    await producer.execute("set surelane.acting = 'UBOSS'")
    assert await producer.fetchval("select agent.signal($1, 'go')", str(identity)) == "sent"
    assert await queue.fetchval("select sent_by from agent.signal") == "surelane_producer"


@pytest.mark.parametrize(
    "statement",
    [
        "select * from agent.event",
        "select * from agent.job",
        "select * from agent.signal",
        "insert into agent.event (event_ts, event) values (now(), '{}')",
        "update agent.event set vt = now()",
        "delete from agent.event",
        "select * from agent.children(1)",
        "select agent.insert_event('{}')",
        "select agent.fire_trigger('t', 'w', '{}')",
        "select * from agent.claim_event()",
        "select agent.cancel_live('i', null, null, false)",
        "select agent.cancel_event('i')",
        "select agent.reschedule_event('i', now())",
        "select * from agent.send_signal(1, 'go', 'null', false, null)",
        "select agent.answer_event(1, '{}')",
        "select agent.rerun_events('{1}')",
        "select agent.set_cron('n', 'job', '* * * * *', now())",
        "select agent.measure_queue()",
        "select * from agent.add_data_key('T1', 'id', 'garbage')",
        "select agent.drop_history('1 day')",
        "create table agent.mine ()",
    ],
)
async def test_a_producer_may_do_nothing_more(queue: Connection, connect: Connect, statement: str) -> None:
    await enqueue(queue, item_key="i")
    producer = await connect("surelane_producer")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await producer.execute(statement)


@pytest.mark.parametrize("role", ["agent_ingest", "agent_worker", "agent_operator", "agent_producer"])
async def test_what_the_functions_are_made_of_belongs_to_the_owner(queue: Connection, role: str) -> None:
    inner = {"promote", "reelect", "hold_claims", "hold_group", "hold_groups", "end_events", "archive_events"}
    inner |= {"add_event", "store_event"}
    assert await callable_by(queue, role) & inner == set()
    assert not await queue.fetchval("select has_schema_privilege($1, 'agent', 'create')", role)


async def test_operators_read_the_views_and_steer(queue: Connection, operator: Connection) -> None:
    may = await callable_by(queue, "agent_operator")
    assert may >= {
        "cancel_event",
        "rerun_events",
        "pause_kind",
        "resume_kind",
        "queue_stats",
        "reschedule_event",
    }
    assert may & {"claim_event", "claim_events", "complete_events", "delete_event", "insert_event"} == set()
    await enqueue(queue)
    assert len(await operator.fetch("select * from agent.job")) == 1
    assert len(await operator.fetch("select * from agent.schedule_queue")) == 1


async def test_who_is_nobody_may_nothing(queue: Connection) -> None:
    open_tables = await queue.fetch(
        "select relname from pg_class cross join aclexplode(relacl) as grants"
        " where relnamespace = 'agent'::regnamespace and grants.grantee = 0"
    )
    assert open_tables == []
    assert not await queue.fetchval("select has_schema_privilege('public', 'agent', 'usage')")


async def test_who_acted_is_the_session_not_the_owner_of_the_function(
    queue: Connection, connect: Connect
) -> None:
    worker = await connect("surelane_worker")
    identity = await enqueue(worker, item_key="i")
    await worker.execute("select agent.cancel_event('i')")
    row = await queue.fetchrow(
        "select enqueued_by, finished_by, reason from agent.event_hist where id = $1", identity
    )
    assert row is not None
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
    queue = await asyncpg.connect(database)
    try:
        await queue.execute(HOSTILE)
        await queue.execute("set search_path = hostile, pg_catalog")
        with pytest.raises(asyncpg.RaiseError, match="hostile"):
            await queue.fetchval("select clock_timestamp()")
        await insert(queue, envelope("Ev1", channel="C1", ts="1.1"))
        await insert(queue, envelope("Ev2", channel="C1", ts="1.1"))
        await enqueue(queue, dedupe_key="k", item_key="i", group_key="g")
        rows = await claim(queue, "slack.app_mention", "job")
        assert len(rows) == 3
        assert await complete(queue, *map(pair, rows[:2])) == ["done", "done"]
        await queue.execute("select agent.delete_event($1)", rows[2]["id"])
        await queue.execute("select agent.delete_expired_events()")
        await queue.execute("insert into agent.event (event_ts, event) values (pg_catalog.now(), '{}')")
        assert await claim_one(queue) is not None
    finally:
        await queue.close()
